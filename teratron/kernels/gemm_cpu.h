// x w^T + bias on the CPU in f32 by oneDNN. at::linear goes to MKL, which on processors that are not Intel's takes a fifth to a
// third longer; oneDNN is in libtorch, too, but only behind an op that torch.compile calls.
#pragma once

#include <ATen/core/Tensor.h>

namespace teratron {

/// Whether multiply_by_onednn takes these factors and is worth its set-up.
bool suits_onednn(const at::Tensor& x, const at::Tensor& w);

/// x [T, I] times the transpose of w [O, I] (of any strides), plus bias [O] if that is defined.
at::Tensor multiply_by_onednn(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

}  // namespace teratron
