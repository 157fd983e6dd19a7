// Fixture files, hashes, error messages and temporary folders for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron::testing {

/// tests/fixtures/<name> of the source tree.
std::filesystem::path fixture(const std::string& name);
nlohmann::json read_json(const std::filesystem::path& path);
/// One JSON value per line.
std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path);
std::string read_bytes(const std::filesystem::path& path);
void write_bytes(const std::filesystem::path& path, std::string_view bytes);

std::string sha256(std::string_view bytes);
template <typename T>
std::string sha256_of(const std::vector<T>& values) {
  return sha256({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

/// Message of the UserError of this kind thrown by `action`; empty if it throws none.
std::string message_of(const std::function<void()>& action, ExitCode kind = ExitCode::data);

/// A new folder, removed by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace teratron::testing
