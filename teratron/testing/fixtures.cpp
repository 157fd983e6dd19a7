#include "teratron/testing/fixtures.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/base/sha256.h"

namespace teratron::testing {

std::string sha256(std::string_view bytes) {
  std::string text;
  for (const uint8_t byte : teratron::sha256(bytes)) text += fmt::format("{:02x}", byte);
  return text;
}

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(read_bytes(path));
}

std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path) {
  std::istringstream text(read_bytes(path));
  std::vector<nlohmann::json> values;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty()) values.push_back(nlohmann::json::parse(line));
  }
  return values;
}

std::string message_of(const std::function<void()>& action, ExitCode kind) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), kind);
    return error.what();
  }
  return "";
}

}  // namespace teratron::testing
