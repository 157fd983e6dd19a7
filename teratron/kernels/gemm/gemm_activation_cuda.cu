#include "teratron/kernels/common/partials.cuh"
#include "teratron/kernels/gemm/gemm_activation_cuda.h"
#include "teratron/kernels/gemm/gemm_activation_launch.cuh"

namespace teratron::cuda {
namespace {

using namespace gemm_activation;

bool is_narrow(const GemmActivationShape& shape) {
  return shape.k < 1024 && !is_gated(shape.activation);
}

template <bool backward, Activation kind>
void launch(const Params& p, cudaStream_t stream) {
  if constexpr (!takes_up<kind>) {
    if (is_narrow(p.shape)) return launch_task<Task<Narrow, backward, kind>>(p, stream);
  }
  launch_task<Task<Wide, backward, kind>>(p, stream);
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
    case Activation::swiglu:
      return launch<backward, Activation::swiglu>(p, stream);
    case Activation::geglu:
      return launch<backward, Activation::geglu>(p, stream);
  }
}

}  // namespace

bool has_gemm_activation(const GemmActivationShape& shape) {
  return can_launch<Task<Wide, false, Activation::gelu>>(shape);
}

void gemm_activation_forward(const GemmActivationShape& shape, const GemmActivationForward& args,
                             CUstream_st* stream) {
  const int half_columns = is_narrow(shape) ? Form<Narrow>::half_columns : Form<Wide>::half_columns;
  const Params p{.a = matrix(args.x, shape.rows, shape.k, tile_rows),
                 .b = matrix(args.w, parts_of(shape.activation) * shape.width, shape.k, half_columns),
                 .shape = shape,
                 .bias = static_cast<const bf16*>(args.bias),
                 .z_in = nullptr,
                 .z_out = static_cast<bf16*>(args.z),
                 .out = static_cast<bf16*>(args.out),
                 .partial = nullptr,
                 .turn = {}};
  launch<false>(p, stream);
}

int64_t gemm_activation_partials(const GemmActivationShape& shape) {
  return ceil_div(shape.rows, tile_rows);
}

void gemm_activation_backward(const GemmActivationShape& shape, const GemmActivationBackward& args,
                              CUstream_st* stream) {
  const Params p{.a = matrix(args.dy, shape.rows, shape.k, tile_rows),
                 .b = matrix(args.w, shape.k, shape.width, tile_k),
                 .shape = shape,
                 .bias = nullptr,
                 .z_in = static_cast<const bf16*>(args.z),
                 .z_out = nullptr,
                 .out = static_cast<bf16*>(args.dz),
                 .partial = static_cast<float*>(args.sum.partial),
                 .turn = {}};
  launch<true>(p, stream);
  if (args.sum.partial == nullptr) return;
  add_partials<float>({.sums = {args.sum},
                       .count = gemm_activation_partials(shape),
                       .width = parts_of(shape.activation) * shape.width},
                      stream);
}

}  // namespace teratron::cuda
