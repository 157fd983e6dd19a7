// The CUDA kernels of launchers.h that Mamba-2 and the gated delta net share, with their tensors. Internal to
// kernels.
#pragma once

#include "teratron/kernels/common/state_rows.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/mamba/launchers.h"

namespace teratron::mamba {

/// Null for an undefined tensor.
const float* float_or_null(const at::Tensor& x);

/// Weights as kernels of rows of this dtype read them: as they are if they are of that dtype or of f32.
/// Undefined stays so.
at::Tensor readable_weights(const at::Tensor& weights, at::ScalarType rows);
/// What readable_weights() returned, which must be kept.
cuda::WeightVector weight_vector(const at::Tensor& readable);

/// The causal depthwise convolution, with silu.
class FusedConv {
 public:
  struct Weights {
    at::Tensor weight;  // [C, 1, W]
    at::Tensor bias;    // [C]; may be undefined
  };
  static bool supports(const at::Tensor& weight);

  /// x [S, B, C], a view of rows; `before` [B, W - 1, C] and `document` [S, B] may be undefined.
  FusedConv(const at::Tensor& x, const at::Tensor& before, const at::Tensor& document,
            const Weights& weights);

  at::Tensor forward(DeviceStream stream) const;
  /// The last W - 1 inputs, [B, W - 1, C].
  at::Tensor after() const;

  struct Gradients {
    at::Tensor dweight, dbias;  // [C, W]; undefined without a bias
  };
  /// dy [S, B, C]. Writes dx, a view of rows as x.
  Gradients backward(const at::Tensor& dy, const at::Tensor& dx, DeviceStream stream) const;

 private:
  cuda::CausalConv describe() const;

  at::Tensor x_, before_, document_, weight_, bias_;
};

/// x [R, C], a view of rows; readable weights.
cuda::ConvStep conv_step(const at::Tensor& x, const StateTables& tables, const FusedConv::Weights& weights);

struct FusedGatedNorm {
  cuda::GatedNormShape shape;
  at::Tensor y;  // [S, B, groups * width]
  cuda::TokenRows z;
  at::Tensor weight;  // readable; undefined without a norm
  DeviceStream stream;

  at::Tensor forward() const;
  struct Gradients {
    at::Tensor dy;
    at::Tensor dweight;  // [groups, width] in f32; undefined without a norm
  };
  Gradients backward(const at::Tensor& dout, const cuda::TokenRows& dz) const;
};

}  // namespace teratron::mamba
