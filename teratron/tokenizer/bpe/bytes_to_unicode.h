// GPT-2's byte encoder: each byte is a printable code point; the n-th non-printable byte becomes 256 + n.
// Vocabulary files contain byte-encoded tokens.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teratron {

/// Code point of each byte.
const std::array<uint16_t, 256>& bytes_to_unicode();

/// Bytes sorted by code point: the order of the base tokens.
std::array<uint8_t, 256> bytes_in_unicode_order();

std::string byte_encode(std::string_view bytes);
/// Inverse; nullopt if a code point does not encode a byte. `text` must be valid UTF-8.
std::optional<std::string> byte_decode(std::string_view text);

}  // namespace teratron
