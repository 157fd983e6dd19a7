// The launchers of a build without nvcc. Nothing calls them unless a tensor is on a GPU.
#include "teratron/base/error.h"
#include "teratron/kernels/attention/cudnn_attention.h"
#include "teratron/kernels/attention/qkv_cuda.h"
#include "teratron/kernels/attention/rope_cuda.h"
#include "teratron/kernels/common/reduce_cuda.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/fp8/activation_fp8_cuda.h"
#include "teratron/kernels/fp8/fp8_cuda.h"
#include "teratron/kernels/gemm/gemm_activation_cuda.h"
#include "teratron/kernels/gemm/gemm_cuda.h"
#include "teratron/kernels/loss/cross_entropy_cuda.h"
#include "teratron/kernels/norm/norm_cuda.h"
#include "teratron/kernels/optimizer/optimizer_step_cuda.h"
#include "teratron/kernels/pointwise/activation_cuda.h"
#include "teratron/kernels/pointwise/dropout_cuda.h"
#include "teratron/kernels/pointwise/embedding_cuda.h"
#include "teratron/kernels/pointwise/random_fill_cuda.h"

namespace teratron {
namespace {

[[noreturn]] void missing(const char* kernel) {
  throw Fault(fmt::format("{}: this build has no CUDA kernels; build again with nvcc, or run on CPU", kernel),
              ExitCode::config);
}

}  // namespace

DeviceStream current_stream(const at::Tensor&) {
  missing("current_stream");
}

void cudnn_attention_backward(const AttentionForward&, const at::Tensor&, const AttentionOptions&,
                              const AttentionGradients&) {
  missing("attention");
}

namespace cuda {
void norm_forward(const NormShape&, const NormForwardArgs&, CUstream_st*) {
  missing("norm_forward");
}
bool norm_backward_can_sum_dx(const NormShape&) {
  missing("norm_backward");
}
int64_t norm_backward_blocks(const NormShape&) {
  missing("norm_backward");
}
void norm_backward(const NormShape&, const NormBackwardArgs&, CUstream_st*) {
  missing("norm_backward");
}
void activation_forward(const ActivationShape&, const ActivationArgs&, CUstream_st*) {
  missing("activation");
}
void activation_backward(const ActivationShape&, const ActivationArgs&, CUstream_st*) {
  missing("activation");
}
int64_t activation_partials(const ActivationShape&) {
  missing("activation");
}
bool has_gemm_activation(const GemmActivationShape&) {
  missing("gemm_activation");
}
void gemm_activation_forward(const GemmActivationShape&, const GemmActivationForward&, CUstream_st*) {
  missing("gemm_activation");
}
bool has_gemm_turn(const GemmActivationShape&, int64_t) {
  missing("gemm_turn");
}
void gemm_turn(const GemmActivationShape&, const GemmTurnArgs&, CUstream_st*) {
  missing("gemm_turn");
}
int64_t gemm_activation_partials(const GemmActivationShape&) {
  missing("gemm_activation");
}
void gemm_activation_backward(const GemmActivationShape&, const GemmActivationBackward&, CUstream_st*) {
  missing("gemm_activation");
}
int64_t activation_fp8_partials(const ActivationShape&) {
  missing("activation");
}
void activation_forward_fp8(const ActivationFp8Args&, CUstream_st*) {
  missing("activation");
}
void activation_backward_fp8(const ActivationFp8Args&, CUstream_st*) {
  missing("activation");
}
int64_t column_sum_partials(int64_t, int64_t) {
  missing("column_sum");
}
void column_sum(const ColumnSumArgs&, CUstream_st*) {
  missing("column_sum");
}
bool can_merge_qkv(const MergeQkvArgs&) {
  missing("merge_qkv");
}
int64_t merge_qkv_partials(const MergeQkvArgs&) {
  missing("merge_qkv");
}
void merge_qkv(const MergeQkvArgs&, CUstream_st*) {
  missing("merge_qkv");
}
void rope(const RopeArgs&, CUstream_st*) {
  missing("rope");
}
void cross_entropy_statistics(const VocabShape&, const CrossEntropyStatisticsArgs&, CUstream_st*) {
  missing("cross_entropy_statistics");
}
void cross_entropy_gradient(const VocabShape&, const CrossEntropyGradientArgs&, CUstream_st*) {
  missing("cross_entropy_gradient");
}
void cross_entropy_scale(const VocabShape&, const CrossEntropyScaleArgs&, CUstream_st*) {
  missing("cross_entropy_scale");
}
bool has_cross_entropy_with_gradient(const VocabShape&) {
  missing("cross_entropy_with_gradient");
}
void cross_entropy_with_gradient(const VocabShape&, const CrossEntropyWithGradientArgs&, CUstream_st*) {
  missing("cross_entropy_with_gradient");
}
void cross_entropy_gradient_fp8(const VocabShape&, const CrossEntropyGradientArgs&, const Fp8Target&,
                                CUstream_st*) {
  missing("cross_entropy_gradient_fp8");
}
void adam_step(const StepArgs&, const AdamConstants&, CUstream_st*) {
  missing("adam_step");
}
void sgd_step(const StepArgs&, double, CUstream_st*) {
  missing("sgd_step");
}
void advance_step(int64_t*, const float*, CUstream_st*) {
  missing("advance_step");
}
void join_halves(const HalvesArgs&, CUstream_st*) {
  missing("join_halves");
}
void split_into_halves(const HalvesArgs&, CUstream_st*) {
  missing("split_into_halves");
}
int64_t reduce_partials(int64_t) {
  missing("reduce");
}
void sum_of_squares(const FlatBuffer&, double*, double*, CUstream_st*) {
  missing("sum_of_squares");
}
void count_zeros(const FlatBuffer&, int64_t*, int64_t*, CUstream_st*) {
  missing("count_zeros");
}
void flag_nonfinite(const FlatBuffer&, float*, CUstream_st*) {
  missing("flag_nonfinite");
}
void sum_parts(const FlatBuffer&, const Parts&, bool, CUstream_st*) {
  missing("sum_parts");
}
void scale(const FlatBuffer&, const void*, bool, CUstream_st*) {
  missing("scale");
}
void bias_dropout_add(const DropoutArgs&, CUstream_st*) {
  missing("bias_dropout_add");
}
void softmax_forward(const SoftmaxArgs&, CUstream_st*) {
  missing("softmax_forward");
}
void softmax_backward(const SoftmaxArgs&, CUstream_st*) {
  missing("softmax_backward");
}
void add_looked_up(const AddLookedUpArgs&, CUstream_st*) {
  missing("add_looked_up");
}
int64_t add_rows_partials(int64_t) {
  missing("add_rows");
}
void add_rows(const AddRowsArgs&, CUstream_st*) {
  missing("add_rows");
}
void fp8_cast(const Fp8CastArgs&, CUstream_st*) {
  missing("fp8_cast");
}
void fp8_scale_of(const Fp8ScaleArgs&, CUstream_st*) {
  missing("fp8_scale_of");
}
void gemm(const GemmArgs&, CUstream_st*) {
  missing("gemm");
}
void random_fill(const FillArgs&, CUstream_st*) {
  missing("random_fill");
}
}  // namespace cuda

}  // namespace teratron
