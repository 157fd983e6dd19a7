// The loops of activation.h on the CPU. Raw pointers; null where a tensor is undefined.
#pragma once

#include "teratron/kernels/pointwise/activation_cuda.h"

namespace teratron::cpu {

/// How many rows of partial sums the backward writes: one per so many rows, whatever the number of threads.
int64_t activation_partials(const cuda::ActivationShape& shape);
void activation_forward(const cuda::ActivationShape& shape, const cuda::ActivationArgs& args);
void activation_backward(const cuda::ActivationShape& shape, const cuda::ActivationArgs& args);

}  // namespace teratron::cpu
