// Environment variables, behind a function so that tests can invent some.
#pragma once

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace teratron {

/// The value of a variable; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// The environment of this process.
inline std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace teratron
