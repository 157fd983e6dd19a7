// Extended grapheme clusters (UAX #29) as Hugging Face tokenizers has them (generated table:
// grapheme_tables.inc). Regex libraries have the Unicode version of the machine.
#pragma once

#include <cstddef>
#include <string_view>

namespace teratron::unicode {

/// Bytes of the first cluster of a text, which is not empty and valid UTF-8.
size_t cluster_bytes(std::string_view text);

}  // namespace teratron::unicode
