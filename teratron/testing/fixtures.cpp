#include "teratron/testing/fixtures.h"

#include <array>
#include <bit>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>
#include <unistd.h>

namespace teratron::testing {

namespace {

// FIPS 180-4. The constants are the fractions of the roots of the first primes.
struct Sha256 {
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint32_t, 64> constants = {};

  Sha256() {
    int count = 0;
    for (uint64_t p = 2; count < 64; ++p) {
      bool prime = true;
      for (uint64_t d = 2; d * d <= p; ++d) prime = prime && p % d != 0;
      if (!prime) continue;
      // floor(2^32 * cbrt(p)) by integer search, low 32 bits.
      uint64_t root = 0;
      for (int bit = 35; bit >= 0; --bit) {
        const unsigned __int128 next = root | (uint64_t{1} << bit);
        if (next * next * next <= (static_cast<unsigned __int128>(p) << 96))
          root = static_cast<uint64_t>(next);
      }
      constants[count++] = static_cast<uint32_t>(root);
    }
  }

  void block(const unsigned char* bytes) {
    std::array<uint32_t, 64> w;
    for (int i = 0; i < 16; ++i)
      w[i] = bytes[4 * i] << 24 | bytes[4 * i + 1] << 16 | bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    auto s = state;
    for (int i = 0; i < 64; ++i) {
      const uint32_t t1 = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                          ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + w[i];
      const uint32_t t2 = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                          ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (int i = 0; i < 8; ++i) state[i] += s[i];
  }
};

}  // namespace

std::string sha256(std::string_view bytes) {
  std::string padded(bytes);
  padded += '\x80';
  while (padded.size() % 64 != 56) padded += '\0';
  for (int i = 7; i >= 0; --i) padded += static_cast<char>((bytes.size() * 8) >> (8 * i));
  Sha256 hash;
  for (size_t i = 0; i < padded.size(); i += 64)
    hash.block(reinterpret_cast<const unsigned char*>(&padded[i]));
  std::string text;
  for (const uint32_t word : hash.state) {
    char hex[9];
    std::snprintf(hex, sizeof(hex), "%08x", word);
    text += hex;
  }
  return text;
}

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(TERATRON_SOURCE_DIR) / "tests" / "fixtures" / name;
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

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "teratron-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace teratron::testing
