// Shared by dropout.cpp and softmax.cpp. Internal to kernels.
#pragma once

#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/kernels/pointwise/dropout_mask.h"

namespace teratron {

/// Checks that `dropout` fits x and says it as plain data (pointing into dropout.where.rows).
DropoutMask mask_of(const Dropout& dropout, const at::Tensor& x);

}  // namespace teratron
