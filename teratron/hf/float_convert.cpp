#include "teratron/hf/float_convert.h"

#include <bit>
#include <cstring>

#include "teratron/base/error.h"

namespace teratron {

namespace {

struct Bfloat16 {
  uint16_t bits;
};

float widen(float value) {
  return value;
}
float widen(double value) {
  return static_cast<float>(value);
}
float widen(_Float16 value) {
  return static_cast<float>(value);
}
float widen(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

template <typename T>
T narrow(float value) {
  return static_cast<T>(value);
}
template <>
Bfloat16 narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value)
    return {static_cast<uint16_t>(bits >> 16 | 0x40)};  // rounding could turn it into infinity
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <typename From, typename To>
void convert(const void* source, void* target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, static_cast<const char*>(source) + i * sizeof(From), sizeof(From));
    const To converted = narrow<To>(widen(value));
    std::memcpy(static_cast<char*>(target) + i * sizeof(To), &converted, sizeof(To));
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

void convert_floats(Dtype from, const void* source, Dtype to, void* target, int64_t count) {
  if (from == to) {
    std::memcpy(target, source, static_cast<size_t>(count * size_of(from)));
    return;
  }
  with_type(from, [&](auto a) {
    with_type(to, [&](auto b) { convert<decltype(a), decltype(b)>(source, target, count); });
  });
}

}  // namespace teratron
