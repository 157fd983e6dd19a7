// CPU loops of activation.h. Raw pointers; null where a tensor is undefined.
#pragma once

#include "teratron/kernels/pointwise/launchers.h"

namespace teratron::cpu {

/// Rows of partial sums that the backward writes; independent of the number of threads.
int64_t activation_workspace_rows(const cuda::ActivationShape& shape);
void activation_forward(const cuda::ActivationShape& shape, const cuda::ActivationArgs& args);
void activation_backward(const cuda::ActivationShape& shape, const cuda::ActivationArgs& args);

}  // namespace teratron::cpu
