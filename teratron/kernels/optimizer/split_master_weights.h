// Split master weights: fp32 as a bf16 and 16 low bits. For host and device, without torch.
//
//   bits of the fp32 value = high * 2^16 + low,   low signed
//
// `high` is the value rounded to the nearest bf16, ties away from zero (ties to even would make the sum
// ambiguous). NaN loses its payload.
#pragma once

#include <cstdint>

#include "teratron/base/philox.h"  // TERATRON_HOST_DEVICE

namespace teratron {

struct SplitWeight {
  uint16_t high;
  int16_t low;
};

TERATRON_HOST_DEVICE uint32_t join_master_weight(SplitWeight x) {
  return (static_cast<uint32_t>(x.high) << 16) + static_cast<uint32_t>(static_cast<int32_t>(x.low));
}

TERATRON_HOST_DEVICE SplitWeight split_master_weight(uint32_t bits) {
  constexpr uint32_t magnitude = 0x7FFFFFFF, infinity = 0x7F800000, quiet_nan = 0x7FC00000;
  if ((bits & magnitude) > infinity) bits = quiet_nan;
  return {static_cast<uint16_t>((bits + 0x8000) >> 16), static_cast<int16_t>(bits & 0xFFFF)};
}

}  // namespace teratron
