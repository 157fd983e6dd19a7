// fp32 as a bf16 and sixteen bits more, without torch. On the host and on devices.
//
//   bits of the fp32 number = high * 2^16 + low,   low signed
//
// `high` is the number rounded to the nearest bf16; one in the middle of two becomes the larger in magnitude (with ties to
// even the sum would not be unique). NaN keeps no payload.
#pragma once

#include <cstdint>

#include "teratron/base/philox.h"  // TERATRON_HOST_DEVICE

namespace teratron {

struct SplitFloat {
  uint16_t high;
  int16_t low;
};

TERATRON_HOST_DEVICE uint32_t join_bits(SplitFloat x) {
  return (static_cast<uint32_t>(x.high) << 16) + static_cast<uint32_t>(static_cast<int32_t>(x.low));
}

TERATRON_HOST_DEVICE SplitFloat split_bits(uint32_t bits) {
  constexpr uint32_t magnitude = 0x7FFFFFFF, infinity = 0x7F800000, quiet_nan = 0x7FC00000;
  if ((bits & magnitude) > infinity) bits = quiet_nan;
  return {static_cast<uint16_t>((bits + 0x8000) >> 16), static_cast<int16_t>(bits & 0xFFFF)};
}

}  // namespace teratron
