// GEMM with an activation after it, and its backward (gemm.h); launchers of the kernel in
// fused_gemm_tile.cuh:
//   out = f(x w^T + bias), also z; backward: dz = f'(z) (dy w), with the sum of dz over rows
// Persistent blocks, one tile of 128 rows at a time, 256 columns wide, or 192 for short k: one warp loads,
// two warpgroups multiply, further warps apply f while the next tile is multiplied.
// Bytes: those of the GEMM; z and out are written once, without the pass of an activation over them.
#include "teratron/kernels/common/column_reduction.cuh"
#include "teratron/kernels/gemm/fused_gemm_launch.cuh"
#include "teratron/kernels/gemm/launchers.h"

namespace teratron::cuda {
namespace {

using namespace fused_gemm;

bool use_tile192(const FusedGemmShape& shape) {
  return shape.k < 1024 && !is_gated(shape.activation);
}

template <bool backward, Activation kind>
void launch(const Params& p, cudaStream_t stream) {
  if constexpr (!gated_kind<kind>) {
    if (use_tile192(p.shape)) return launch_kernel<ActivationGemm<Tile192, backward, kind>>(p, stream);
  }
  launch_kernel<ActivationGemm<Tile256, backward, kind>>(p, stream);
}

template <bool backward>
void launch(const Params& p, cudaStream_t stream) {
  switch (p.shape.activation) {
    case Activation::gelu:
      return launch<backward, Activation::gelu>(p, stream);
    case Activation::gelu_erf:
      return launch<backward, Activation::gelu_erf>(p, stream);
    case Activation::squared_relu:
      return launch<backward, Activation::squared_relu>(p, stream);
    case Activation::relu:
      return launch<backward, Activation::relu>(p, stream);
    case Activation::silu:
      return launch<backward, Activation::silu>(p, stream);
    case Activation::quick_gelu:
      return launch<backward, Activation::quick_gelu>(p, stream);
    case Activation::swiglu:
      return launch<backward, Activation::swiglu>(p, stream);
    case Activation::geglu:
      return launch<backward, Activation::geglu>(p, stream);
  }
}

}  // namespace

bool has_gemm_activation(const FusedGemmShape& shape) {
  return can_launch<ActivationGemm<Tile256, false, Activation::gelu>>(shape);
}

void gemm_activation_forward(const FusedGemmShape& shape, const GemmActivationForward& args,
                             CUstream_st* stream) {
  const int half_columns =
      use_tile192(shape) ? TileConfig<Tile192>::half_columns : TileConfig<Tile256>::half_columns;
  const int64_t width = parts_of(shape.activation) * shape.width;
  const Params p{.a = tensor_map(args.x, shape.rows, shape.k, tile_rows),
                 .b = tensor_map(args.w, width, shape.k, half_columns),
                 .added_a = tensor_map(args.added.x, shape.rows, shape.added_k, tile_rows),
                 .added_b = tensor_map(args.added.w, width, shape.added_k, half_columns),
                 .shape = shape,
                 .bias = static_cast<const bf16*>(args.bias),
                 .z_in = nullptr,
                 .z_out = static_cast<bf16*>(args.z),
                 .out = static_cast<bf16*>(args.out),
                 .dbias_workspace = nullptr,
                 .rope = {}};
  launch<false>(p, stream);
}

int64_t gemm_activation_workspace_rows(const FusedGemmShape& shape) {
  return ceil_div(shape.rows, tile_rows);
}

void gemm_activation_backward(const FusedGemmShape& shape, const GemmActivationBackward& args,
                              CUstream_st* stream) {
  const Params p{.a = tensor_map(args.dy, shape.rows, shape.k, tile_rows),
                 .b = tensor_map(args.w, shape.k, shape.width, tile_k),
                 .added_a = tensor_map(args.added.x, shape.rows, shape.added_k, tile_rows),
                 .added_b = tensor_map(args.added.w, shape.added_k, shape.width, tile_k),
                 .shape = shape,
                 .bias = nullptr,
                 .z_in = static_cast<const bf16*>(args.z),
                 .z_out = nullptr,
                 .out = static_cast<bf16*>(args.dz),
                 .dbias_workspace = static_cast<float*>(args.dbias.workspace),
                 .rope = {}};
  launch<true>(p, stream);
  if (args.dbias.workspace == nullptr) return;
  finalize_column_sums<float>({.sums = {args.dbias},
                               .rows = gemm_activation_workspace_rows(shape),
                               .width = parts_of(shape.activation) * shape.width},
                              stream);
}

}  // namespace teratron::cuda
