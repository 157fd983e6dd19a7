#include "teratron/hf/float_convert.h"

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
std::vector<char> convert(const std::vector<char>& source) {
  const size_t count = source.size() / sizeof(From);
  std::vector<char> target(count * sizeof(To));
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, source.data() + i * sizeof(From), sizeof(From));
    const To converted = static_cast<To>(static_cast<float>(value));
    std::memcpy(target.data() + i * sizeof(To), &converted, sizeof(To));
  }
  return target;
}

template <typename Function>
std::vector<char> with_type(Dtype dtype, const Function& function) {
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

std::vector<char> convert_floats(std::vector<char> values, Dtype from, Dtype to) {
  if (from == to) return values;
  return with_type(from, [&](auto a) {
    return with_type(to, [&](auto b) { return convert<decltype(a), decltype(b)>(values); });
  });
}

}  // namespace teratron
