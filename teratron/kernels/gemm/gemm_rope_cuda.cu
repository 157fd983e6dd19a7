// QKV projection with RoPE (gemm.h): out = rope(x w^T + bias) for q and k. Launcher of the kernel in
// fused_gemm_tile.cuh, whose epilogue (fused_gemm_rope.cuh) rotates whole heads of a tile while the next
// one is multiplied. Bytes: those of the GEMM; no pass over q and k remains.
#include "teratron/kernels/gemm/fused_gemm_launch.cuh"
#include "teratron/kernels/gemm/launchers.h"

namespace teratron::cuda {

using namespace fused_gemm;

bool has_gemm_rope(const FusedGemmShape& shape, int64_t channels) {
  constexpr int64_t min_k = 1024;  // shorter main loops do not hide the epilogue
  const bool whole_heads = channels % 16 == 0 && RopeGemm::columns % channels == 0;
  return whole_heads && shape.k >= min_k && can_launch<RopeGemm>(shape);
}

void gemm_rope(const FusedGemmShape& shape, const GemmRopeArgs& args, CUstream_st* stream) {
  const Params p{.a = tensor_map(args.x, shape.rows, shape.k, tile_rows),
                 .b = tensor_map(args.w, shape.width, shape.k, RopeGemm::half_columns),
                 .added_a = tensor_map(args.added.x, shape.rows, shape.added_k, tile_rows),
                 .added_b = tensor_map(args.added.w, shape.width, shape.added_k, RopeGemm::half_columns),
                 .shape = shape,
                 .bias = static_cast<const bf16*>(args.bias),
                 .z_in = nullptr,
                 .z_out = nullptr,
                 .out = static_cast<bf16*>(args.out),
                 .dbias_workspace = nullptr,
                 .rope = args.rope};
  launch_kernel<RopeGemm>(p, stream);
}

}  // namespace teratron::cuda
