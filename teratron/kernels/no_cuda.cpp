// Stubs for builds without nvcc; reached only with a tensor on a GPU.
#include "teratron/base/error.h"
#include "teratron/kernels/attention/cudnn_attention.h"
#include "teratron/kernels/common/stream.h"

namespace teratron {
namespace {

[[noreturn]] void missing(const char* kernel) {
  throw Fault(fmt::format("{}: this build has no CUDA kernels; rebuild with nvcc, or run on CPU", kernel),
              ExitCode::config);
}

}  // namespace

DeviceStream current_stream(const at::Tensor&) {
  missing("current_stream");
}

void cudnn_attention_backward(const AttentionForward&, const at::Tensor&, const AttentionOptions&,
                              const AttentionGradients&) {
  missing("cudnn_attention_backward");
}

}  // namespace teratron

// Declarations become definitions.
#define TERATRON_LAUNCHER(result, name, ...) \
  result name(__VA_ARGS__) {                 \
    missing(#name);                          \
  }
#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/launchers.h"
#include "teratron/kernels/delta/launchers.h"
#include "teratron/kernels/experts/launchers.h"
#include "teratron/kernels/fp8/launchers.h"
#include "teratron/kernels/gemm/launchers.h"
#include "teratron/kernels/grouped_gemm/launchers.h"
#include "teratron/kernels/loss/launchers.h"
#include "teratron/kernels/mamba/launchers.h"
#include "teratron/kernels/norm/launchers.h"
#include "teratron/kernels/optimizer/launchers.h"
#include "teratron/kernels/pointwise/launchers.h"
#include "teratron/kernels/sampling/launchers.h"
