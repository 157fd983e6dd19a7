#include "teratron/kernels/pointwise/glu_input.h"

#include <ATen/ATen.h>

namespace teratron {

at::Tensor glu_input(const at::Tensor& z, const GluVariant& variant) {
  if (variant.is_plain()) return z;
  const std::vector<at::Tensor> parts = z.chunk(2, -1);
  const bool clamps = variant.limit > 0.0;
  const at::Tensor gate = clamps ? parts[0].clamp_max(variant.limit) : parts[0];
  const at::Tensor up = clamps ? parts[1].clamp(-variant.limit, variant.limit) : parts[1];
  return at::cat({gate * variant.slope, (up + variant.offset) / variant.slope}, -1);
}

at::Tensor glu_input_grad(const at::Tensor& d, const at::Tensor& z, const GluVariant& variant) {
  if (variant.is_plain()) return d;
  const std::vector<at::Tensor> of = d.chunk(2, -1), parts = z.chunk(2, -1);
  at::Tensor gate = of[0] * variant.slope, up = of[1] / variant.slope;
  if (variant.limit > 0.0) {
    gate.masked_fill_(parts[0].gt(variant.limit), 0.0);
    up.masked_fill_(parts[1].abs().gt(variant.limit), 0.0);
  }
  return at::cat({gate, up}, -1);
}

}  // namespace teratron
