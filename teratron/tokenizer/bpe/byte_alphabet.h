// GPT-2's spelling of bytes as printable characters: a byte that is not printable is written as the code
// point 256 + n, n counting those bytes in order. Vocabulary files hold tokens in this spelling.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace teratron {

/// Code point that stands for each byte.
const std::array<uint16_t, 256>& byte_alphabet();

/// Bytes in the order of their code points: the order in which base tokens are numbered.
std::array<uint8_t, 256> bytes_in_alphabet_order();

/// Bytes -> spelling.
std::string spell_bytes(std::string_view bytes);

/// Spelling (valid UTF-8) -> bytes; nothing when a character is not of the alphabet.
std::optional<std::string> unspell_bytes(std::string_view spelling);

}  // namespace teratron
