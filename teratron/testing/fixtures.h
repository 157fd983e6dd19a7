// Reading and writing whole files, hashes and error messages for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/testing/files.h"

namespace teratron::testing {

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

}  // namespace teratron::testing
