// Values of random_fill, bitwise the same on host and device. Internal to kernels.
#pragma once

#include "teratron/base/philox.h"

namespace teratron {

struct RandomQuad {
  float value[4];
};

/// Standard normal or U(-1, 1) values of the four elements of a Philox block.
TERATRON_HOST_DEVICE RandomQuad random_block(const RandomKey& key, uint64_t block, bool uniform) {
  RandomQuad out;
  if (uniform) {
    const PhiloxWords w = philox(key, block);
    for (int i = 0; i < 4; ++i) out.value[i] = fmaf(2.0f, uniform_from(w.word[i]), -1.0f);
  } else {
    const NormalQuad q = normal_block(key, block);
    for (int i = 0; i < 4; ++i) out.value[i] = q.value[i];
  }
  return out;
}

}  // namespace teratron
