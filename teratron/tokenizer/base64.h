// Base64 (RFC 4648), padded.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace teratron {

/// nullopt for invalid text.
std::optional<std::string> decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

}  // namespace teratron
