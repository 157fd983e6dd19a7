#include "teratron/hf/float_convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "teratron/base/error.h"

namespace teratron {

namespace {

struct Bfloat16 {
  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const auto wide = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = value != value ? wide | 0x400000  // rounding could turn NaN into infinity
                                            : wide + 0x7fff + (wide >> 16 & 1);
    bits = static_cast<uint16_t>(rounded >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  uint16_t bits = 0;
};

template <typename From, typename To>
void convert(char* values, int64_t count) {
  constexpr int64_t step = 1024;
  std::array<To, step> converted;  // what is written next may lie on what is read
  const int64_t steps = (count + step - 1) / step;
  for (int64_t i = 0; i < steps; ++i) {
    // Wider values from the last on, so that none is overwritten before it is read.
    const int64_t begin = (sizeof(To) > sizeof(From) ? steps - 1 - i : i) * step;
    const int64_t length = std::min(step, count - begin);
    for (int64_t k = 0; k < length; ++k) {
      From value;
      std::memcpy(&value, values + (begin + k) * static_cast<int64_t>(sizeof(From)), sizeof(From));
      converted[k] = static_cast<To>(static_cast<float>(value));
    }
    std::memcpy(values + begin * static_cast<int64_t>(sizeof(To)), converted.data(),
                static_cast<size_t>(length) * sizeof(To));
  }
}

template <typename Function>
void with_type(Dtype dtype, const Function& function) {
  switch (dtype) {
    case Dtype::f64:
      return function(double{});
    case Dtype::f32:
      return function(float{});
    case Dtype::f16:
      return function(_Float16{});
    case Dtype::bf16:
      return function(Bfloat16{});
    default:
      TERATRON_ASSERT(false, "{} is not converted", name_of(dtype));
  }
}

}  // namespace

bool is_convertible_float(Dtype dtype) {
  return dtype == Dtype::f64 || dtype == Dtype::f32 || dtype == Dtype::f16 || dtype == Dtype::bf16;
}

void convert_floats(void* values, int64_t count, Dtype from, Dtype to) {
  if (from == to) return;
  with_type(from, [&](auto a) {
    with_type(to, [&](auto b) { convert<decltype(a), decltype(b)>(static_cast<char*>(values), count); });
  });
}

std::vector<char> convert_floats(std::vector<char> values, Dtype from, Dtype to) {
  const int64_t count = static_cast<int64_t>(values.size()) / size_of(from);
  values.resize(static_cast<size_t>(count * std::max(size_of(from), size_of(to))));
  convert_floats(values.data(), count, from, to);
  values.resize(static_cast<size_t>(count * size_of(to)));
  return values;
}

}  // namespace teratron
