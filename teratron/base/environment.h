// Environment variables behind a function, so that tests can substitute them.
#pragma once

#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include <unistd.h>

namespace teratron {

/// Returns the value of a variable, or nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// The environment of this process.
inline std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// The name of this machine.
inline std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace teratron
