#include "teratron/hf/fp8/block_scaled.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "teratron/hf/float_convert.h"

namespace teratron {

namespace {

// A sign, 4 bits of exponent with bias 7, 3 of fraction; without infinities, NaN where all others are set.
float e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                              : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if (exponent == 15 && fraction == 7) value = std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x80) != 0 ? -value : value;
}

std::array<float, 256> all_values() {
  std::array<float, 256> values{};
  for (size_t bits = 0; bits < values.size(); ++bits) values[bits] = e4m3(static_cast<uint8_t>(bits));
  return values;
}

int64_t blocks(int64_t size) {
  return (size + scale_block - 1) / scale_block;
}

}  // namespace

bool is_block_scaled(const TensorInfo& weight, const TensorInfo& scales) {
  return weight.dtype == Dtype::f8_e4m3 && weight.shape.size() == 2 && scales.dtype == Dtype::f32 &&
         scales.shape == std::vector<int64_t>{blocks(weight.shape[0]), blocks(weight.shape[1])};
}

void read_block_scaled(const BlockScaled& matrix, int64_t begin, int64_t count, void* out) {
  if (count == 0) return;
  static const std::array<float, 256> values = all_values();
  const int64_t columns = matrix.columns, of_row = blocks(columns);
  const int64_t first = begin / columns / scale_block, last = (begin + count - 1) / columns / scale_block;
  std::vector<float> scales(static_cast<size_t>((last - first + 1) * of_row));
  const auto bytes_of = [](int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); };
  matrix.scales(bytes_of(first * of_row), bytes_of(std::ssize(scales)), scales.data());
  constexpr int64_t step = int64_t{1} << 20;
  std::vector<uint8_t> bits(static_cast<size_t>(std::min(step, count)));
  std::vector<float> wide(bits.size());
  for (int64_t done = 0; done < count; done += step) {
    const int64_t length = std::min(step, count - done);
    matrix.weight(begin + done, length, bits.data());
    for (int64_t i = 0; i < length; ++i) {
      const int64_t element = begin + done + i, row = element / columns, column = element % columns;
      wide[i] = values[bits[i]] * scales[(row / scale_block - first) * of_row + column / scale_block];
    }
    convert_floats(wide.data(), length, Dtype::f32, Dtype::bf16);
    constexpr int64_t element_bytes = 2;
    std::memcpy(static_cast<char*>(out) + done * element_bytes, wide.data(),
                static_cast<size_t>(length * element_bytes));
  }
}

}  // namespace teratron
