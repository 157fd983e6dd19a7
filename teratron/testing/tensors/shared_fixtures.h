// Fixtures that lie beside the repository, with tensors as base64 of little-endian f64.
#pragma once

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

namespace teratron::testing {

/// `name` below ../shared/fixtures ("core/mamba2.json"); null where the file is absent: the test is skipped.
inline nlohmann::json shared_fixture(const std::string& name) {
  std::ifstream file(std::filesystem::path(TERATRON_SOURCE_DIR) / ".." / "shared" / "fixtures" / name);
  return file ? nlohmann::json::parse(file) : nlohmann::json();
}

inline std::string from_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = digits.find(c);
    if (digit == digits.npos) break;  // padding
    bits = bits << 6U | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> static_cast<uint32_t>(count) & 255U);
  }
  return bytes;
}

/// {"shape": [2, 3], "f64_base64": "..."}
inline at::Tensor tensor_of(const nlohmann::json& value) {
  const std::string bytes = from_base64(value.at("f64_base64").get<std::string>());
  const at::Tensor tensor = at::empty(value.at("shape").get<std::vector<int64_t>>(), at::kDouble);
  if (bytes.size() == tensor.nbytes()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return bytes.size() == tensor.nbytes() ? tensor : at::Tensor();
}

}  // namespace teratron::testing
