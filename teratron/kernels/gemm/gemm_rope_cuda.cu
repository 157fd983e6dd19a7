#include "teratron/kernels/gemm/gemm_activation_cuda.h"
#include "teratron/kernels/gemm/gemm_activation_launch.cuh"

namespace teratron::cuda {

using namespace gemm_activation;

bool has_gemm_turn(const GemmActivationShape& shape, int64_t channels) {
  constexpr int64_t shortest = 1024;  // what is sooner made leaves the turning threads too little time
  const bool whole_heads = channels % 16 == 0 && TurnTask::columns % channels == 0;
  return whole_heads && shape.k >= shortest && can_launch<TurnTask>(shape);
}

void gemm_turn(const GemmActivationShape& shape, const GemmTurnArgs& args, CUstream_st* stream) {
  const Params p{.a = matrix(args.x, shape.rows, shape.k, tile_rows),
                 .b = matrix(args.w, shape.width, shape.k, TurnTask::half_columns),
                 .shape = shape,
                 .bias = static_cast<const bf16*>(args.bias),
                 .z_in = nullptr,
                 .z_out = nullptr,
                 .out = static_cast<bf16*>(args.out),
                 .partial = nullptr,
                 .turn = args.turn};
  launch_task<TurnTask>(p, stream);
}

}  // namespace teratron::cuda
