// String literals of templates.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace teratron::jinja {

/// The value of what stands between the quotes, with Python's escape sequences; nullopt: one is not valid.
std::optional<std::string> unescaped(std::string_view literal);

}  // namespace teratron::jinja
