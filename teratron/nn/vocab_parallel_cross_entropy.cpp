#include "teratron/nn/vocab_parallel_cross_entropy.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

VocabRange local_range(int64_t columns, int64_t vocabulary, int64_t rank) {
  const int64_t first = rank * columns;
  return {.first = first, .columns = std::clamp<int64_t>(vocabulary - first, 0, columns)};
}

// Reduces each rank's row maxima and sums to those of the whole row.
void all_reduce_statistics(CrossEntropyStatistics& statistics, const Group& group) {
  if (group.size == 1) return;
  const at::Tensor local_max = statistics.max.clone();
  group.communicator->all_reduce(statistics.max, ReduceOp::max).wait();
  const at::Tensor sums =
      at::stack({statistics.sum_exp * at::exp(local_max - statistics.max), statistics.target_logit});
  group.communicator->all_reduce(sums, ReduceOp::sum).wait();
  statistics.sum_exp = sums[0];
  statistics.target_logit = sums[1];
}

// Overwrites the logits, or is cast to FP8 while computed.
LazyTensor logits_grad(const at::Tensor& logits, const CrossEntropySaved& saved, const VocabRange& range) {
  return {[=] {
            cross_entropy_gradient_(logits, saved, range);
            return logits;
          },
          [=](const Fp8Cast& cast) { return cross_entropy_gradient_fp8(logits, saved, range, cast); }};
}

struct LogitsCap {
  double cap;
  at::ScalarType dtype;  // of the logits before
};

// The gradient of the logits before the cap, by (1 - (z / c)^2); overwrites z.
LazyTensor capped_logits_grad(const at::Tensor& z, const CrossEntropySaved& saved, const VocabRange& range,
                              const LogitsCap& of) {
  const auto gradient = [=] {
    const at::Tensor slope = (z / of.cap).square_().neg_().add_(1.0);
    cross_entropy_gradient_(z, saved, range);
    return z.mul_(slope).to(of.dtype);
  };
  return {gradient, [=](const Fp8Cast& cast) { return cast_to_fp8(gradient(), cast); }};
}

// Whether one kernel computes the losses and the gradient of the logits, except for the scale of the losses.
bool fuses_gradient(const ParallelMatmul& head, const at::Tensor& logits) {
  return head.group().size == 1 && !head.product().quantized() && has_cross_entropy_with_gradient(logits);
}

void accumulate_bias_grad(Parameter& bias, const Matmul::Operand& dlogits) {
  TERATRON_ASSERT(dlogits.rows.scalar_type() == bias.tensor.scalar_type(), "the gradient is quantized");
  const at::Tensor sum = column_sum(dlogits.rows);
  accumulate_grad(bias, dlogits.scale_inv.defined() ? sum * dlogits.scale_inv : sum);
}

struct OutputLosses : torch::autograd::Function<OutputLosses> {
  struct Args {
    const ParallelMatmul* head;
    OutputLossOptions options;
    bool training;  // backward will run
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*weight*/,
                            const at::Tensor& targets, const Args& args) {
    const auto& [head, options, training] = args;
    const auto& [vocabulary, softcap, bias] = options;
    const auto [logits_SBV, input] =
        head->forward(x, {.bias_O = bias ? bias->tensor : at::Tensor()}, training);
    const at::Tensor logits = as_rows(soft_capped_logits(logits_SBV, softcap)),
                     rows = targets.reshape(-1).contiguous();
    const VocabRange range = local_range(logits.size(1), vocabulary, head->group().rank);
    save_releasable(context, "logits", logits);
    save_pointer(context, "head", head);
    save_pointer(context, "bias", bias);
    context->saved_data["first"] = range.first;
    context->saved_data["columns"] = range.columns;
    context->saved_data["shape"] = logits_SBV.sizes();
    context->saved_data["softcap"] = softcap;
    if (training && softcap == 0.0 && fuses_gradient(*head, logits)) {
      context->save_for_backward({input.x, input.scale_inv});
      return cross_entropy_with_gradient_(logits, rows, range).view(targets.sizes());
    }
    CrossEntropyStatistics statistics = cross_entropy_statistics(logits, rows, range);
    all_reduce_statistics(statistics, head->group());
    context->save_for_backward({input.x, input.scale_inv, rows, statistics.max, statistics.sum_exp});
    return (statistics.sum_exp.log() + statistics.max - statistics.target_logit).view(targets.sizes());
  }

  // For the gradients [T] of the losses.
  static Matmul::Operand logits_grad_operand(AutogradContext* context, const ParallelMatmul& head,
                                             const at::Tensor& scale) {
    const variable_list saved = context->get_saved_variables();
    const bool fused = saved.size() == 2;
    if (fused) {
      const at::Tensor dlogits = release(context, "logits");
      return {dlogits, dlogits, cross_entropy_scale_(dlogits, scale)};
    }
    const VocabRange range{context->saved_data["first"].toInt(), context->saved_data["columns"].toInt()};
    const CrossEntropySaved statistics{
        .max = saved[3], .sum_exp = saved[4], .targets = saved[2], .scale = scale};
    const at::Tensor logits = release(context, "logits");
    const double softcap = context->saved_data["softcap"].toDouble();
    if (softcap > 0.0)
      return head.product().output_grad(
          capped_logits_grad(logits, statistics, range, {softcap, head.weight().tensor.scalar_type()}));
    return head.product().output_grad(logits_grad(logits, statistics, range));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& head = *saved_pointer<const ParallelMatmul>(context, "head");
    const std::vector<int64_t> shape = context->saved_data["shape"].toIntVector();
    ParallelMatmul::SavedInput x = head.gather_again({saved[0], saved[1]});
    // In FP8 the logits are freed before the GEMMs.
    const Matmul::Operand dlogits = logits_grad_operand(context, head, gradients[0].reshape(-1).contiguous());
    if (auto* const bias = saved_pointer<Parameter>(context, "bias")) accumulate_bias_grad(*bias, dlogits);
    const at::Tensor dx = head.backward(std::move(x), dlogits, shape, context->needs_input_grad(0));
    return {dx, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor soft_capped_logits(const at::Tensor& logits, double softcap) {
  if (softcap == 0.0) return logits;
  return (logits.to(at::promote_types(logits.scalar_type(), at::kFloat)) / softcap).tanh() * softcap;
}

at::Tensor linear_cross_entropy(const at::Tensor& x_SBH, const ParallelMatmul& head,
                                const at::Tensor& targets_SB, const OutputLossOptions& options) {
  register_use(head.weight());
  if (options.bias) register_use(*options.bias);
  const OutputLosses::Args args{&head, options, at::GradMode::is_enabled()};
  return OutputLosses::apply(x_SBH, head.weight().tensor, targets_SB, args);
}

}  // namespace teratron
