#include "teratron/kernels/attention/softmax.h"

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/attention/score_dropout.h"
#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"

namespace teratron {
namespace {

/// Everything but inputs and outputs.
cuda::SoftmaxArgs describe(const at::Tensor& scores, const SoftmaxOptions& options) {
  require_float(scores, "scores");
  TERATRON_ASSERT(scores.dim() == 4, "attention scores of {} dimensions", scores.dim());
  cuda::SoftmaxArgs args{
      .batch = scores.size(0),
      .heads = scores.size(1),
      .queries = scores.size(2),
      .keys = scores.size(3),
      .dtype = dtype_of(scores),
      .scale = options.scale,
      .causal = options.causal,
      .masked = nullptr,
      .masked_strides = {},
      .slopes = address(options.slopes),
      .in = nullptr,
      .saved = nullptr,
      .probabilities = nullptr,
      .out = nullptr,
      .dropout = make_score_dropout(options.dropout, scores,
                                    scores.numel() / std::max<int64_t>(scores.size(3), 1), scores.size(3))};
  if (options.slopes.defined()) {
    TERATRON_ASSERT(options.slopes.scalar_type() == accumulation_type(scores) &&
                    options.slopes.is_contiguous() && options.slopes.numel() == scores.size(1) &&
                    options.slopes.device() == scores.device());
  }
  if (options.mask.defined()) {
    TERATRON_ASSERT(options.mask.scalar_type() == at::kBool && options.mask.device() == scores.device());
    const at::Tensor expanded = options.mask.expand_as(scores);
    args.masked = expanded.const_data_ptr<bool>();
    for (int i = 0; i < 4; ++i) args.masked_strides[i] = expanded.stride(i);
  }
  return args;
}

at::Tensor probabilities_cpu(const at::Tensor& scores, const SoftmaxOptions& options) {
  const double lowest = -std::numeric_limits<double>::infinity();
  at::Tensor z = scores.to(accumulation_type(scores)) * options.scale;
  const int64_t queries = scores.size(2), keys = scores.size(3);
  if (options.slopes.defined()) {
    const at::Tensor key = at::arange(keys, z.options());
    const at::Tensor diagonal = at::arange(keys - queries, keys, z.options());
    z.add_(options.slopes.view({-1, 1, 1}) * (key - diagonal.unsqueeze(1)));
  }
  if (options.causal) {
    z.masked_fill_(at::ones({queries, keys}, at::kBool).triu(1 + keys - queries), lowest);
  }
  if (options.mask.defined()) z.masked_fill_(options.mask, lowest);
  const at::Tensor max = z.amax(-1, true);
  z.sub_(max.masked_fill_(max == lowest, 0)).exp_();
  const at::Tensor sum = z.sum(-1, true);
  return z.div_(sum.masked_fill_(sum == 0, 1)).to(scores.scalar_type());
}

}  // namespace

SoftmaxOutput softmax_forward(const at::Tensor& scores, const SoftmaxOptions& options) {
  cuda::SoftmaxArgs args = describe(scores, options);
  const bool drops = options.dropout.p > 0;
  if (scores.numel() == 0) return {.probabilities = at::empty_like(scores), .y = at::empty_like(scores)};
  if (!scores.is_cuda()) {
    const at::Tensor p = probabilities_cpu(scores, options);
    return {.probabilities = p, .y = drops ? score_dropout_cpu(p, options.dropout) : p};
  }
  SoftmaxOutput out{.probabilities = at::empty_like(scores), .y = at::Tensor()};
  out.y = drops ? at::empty_like(scores) : out.probabilities;
  args.in = address(scores);
  args.probabilities = address(out.probabilities);
  args.out = drops ? address(out.y) : nullptr;
  cuda::softmax_forward(args, current_stream(scores));
  return out;
}

at::Tensor softmax_backward(const at::Tensor& dy, const at::Tensor& probabilities,
                            const SoftmaxOptions& options) {
  cuda::SoftmaxArgs args = describe(probabilities, options);
  require_like(dy, probabilities, probabilities.numel(), "dy");
  if (dy.numel() == 0) return at::empty_like(dy);
  if (dy.is_cuda()) {
    at::Tensor dscores = at::empty_like(dy);
    args.in = address(dy);
    args.saved = address(probabilities);
    args.out = address(dscores);
    cuda::softmax_backward(args, current_stream(dy));
    return dscores;
  }
  const auto type = accumulation_type(dy);
  const at::Tensor g = options.dropout.p > 0 ? score_dropout_cpu(dy.to(type), options.dropout) : dy.to(type);
  const at::Tensor p = probabilities.to(type);
  const at::Tensor weighted = (p * g).sum(-1, true);
  return (g - weighted).mul_(p).mul_(options.scale).to(dy.scalar_type());
}

}  // namespace teratron
