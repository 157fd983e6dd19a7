// Numbers as bytes, lowest first, as pickles and zip files have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace teratron {

inline std::string little_endian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

}  // namespace teratron
