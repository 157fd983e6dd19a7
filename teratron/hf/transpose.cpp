#include "teratron/hf/transpose.h"

#include <algorithm>
#include <cstring>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// In tiles that stay in the cache.
template <typename Element>
void transpose_tiles(const char* in, char* out, const Transposition& part) {
  constexpr int64_t tile = 32, size = sizeof(Element);
  for (int64_t top = 0; top < part.rows; top += tile) {
    const int64_t bottom = std::min(top + tile, part.rows);
    for (int64_t left = 0; left < part.columns; left += tile) {
      const int64_t right = std::min(left + tile, part.columns);
      for (int64_t column = left; column < right; ++column) {
        for (int64_t row = top; row < bottom; ++row)
          std::memcpy(out + (column * part.out_stride + row) * size,
                      in + (row * part.in_stride + column) * size, size);
      }
    }
  }
}

}  // namespace

void transpose(const char* in, char* out, const Transposition& part, int64_t element_bytes) {
  if (element_bytes == 2) return transpose_tiles<uint16_t>(in, out, part);
  if (element_bytes == 4) return transpose_tiles<uint32_t>(in, out, part);
  TERATRON_ASSERT(element_bytes == 8, "{} bytes", element_bytes);
  transpose_tiles<uint64_t>(in, out, part);
}

}  // namespace teratron
