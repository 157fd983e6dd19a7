// Products of FP8 matrices whose rows are in groups (fp8.h), each group with a separate weight (experts):
//
//   y_r = x_r w_g^T        dx_r = dy_r w_g        dw_g (+)= sum_r dy_r^T x_r        r: row of group g
//
// x [R, I], dy [R, O], and the weights of all groups, one below the other [G O, I], cast as one matrix with
// one scale.
//
// On compute capability 9.0 with results in bf16, kernels that find the groups on the device: the host never
// waits. y is summed with fast accumulation (Fp8Product), the gradients in f32; bitwise reproducible.
// Otherwise one product per group (fp8.h), for which the host reads the ends.
#pragma once

#include "teratron/kernels/fp8/fp8.h"

namespace teratron {

/// [R, O] in `type`, from x.rows and w.rows.
at::Tensor fp8_grouped_forward(const Fp8Matrix& x, const Fp8Matrix& w, const Fp8Groups& groups,
                               at::ScalarType type);
/// [R, I] in `type`, from dy.rows and w.columns.
at::Tensor fp8_grouped_input_gradient(const Fp8Matrix& dy, const Fp8Matrix& w, const Fp8Groups& groups,
                                      at::ScalarType type);
/// Overwrites sum [G, O, I] in f32, whose matrices are contiguous, or adds to it. From the columns of both.
void fp8_grouped_weight_gradient_(at::Tensor sum_GOI, const Fp8Matrix& dy, const Fp8Matrix& x,
                                  const Fp8Groups& groups, bool add);

}  // namespace teratron
