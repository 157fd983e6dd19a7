#include "teratron/nn/output_loss.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

VocabRange local_range(int64_t columns, int64_t vocabulary, int64_t rank) {
  const int64_t first = rank * columns;
  return {.first = first, .columns = std::clamp<int64_t>(vocabulary - first, 0, columns)};
}

// Each rank's row maxima and sums become those of the whole row.
void combine(CrossEntropyStatistics& statistics, const Group& group) {
  if (group.size == 1) return;
  const at::Tensor local_max = statistics.max.clone();
  group.communicator->all_reduce(statistics.max, ReduceOp::max).wait();
  const at::Tensor sums =
      at::stack({statistics.sum_exp * at::exp(local_max - statistics.max), statistics.target_logit});
  group.communicator->all_reduce(sums, ReduceOp::sum).wait();
  statistics.sum_exp = sums[0];
  statistics.target_logit = sums[1];
}

// Written over the logits, or cast on the way.
Producer gradient_of(const at::Tensor& logits, const CrossEntropySaved& saved, const VocabRange& range) {
  return {[=] {
            cross_entropy_gradient_(logits, saved, range);
            return logits;
          },
          [=](const Fp8Cast& cast) { return cross_entropy_gradient_fp8(logits, saved, range, cast); }};
}

// The losses and the gradient that lacks its scale.
bool takes_one_pass(const LinearCore& head, const at::Tensor& logits) {
  return head.group->size == 1 && head.product->takes_plain_gradient() &&
         has_cross_entropy_with_gradient(logits);
}

struct OutputLosses : torch::autograd::Function<OutputLosses> {
  struct Plan {
    LinearCore head;
    int64_t vocabulary;
    bool training;  // backward will come
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&,
                            const at::Tensor& targets, const Plan& plan) {
    const auto [logits_SBV, kept] = plan.head.forward(x, {}, plan.training);
    const at::Tensor logits = as_rows(logits_SBV), rows = targets.reshape(-1).contiguous();
    const Group& group = *plan.head.group;
    const VocabRange range = local_range(logits.size(1), plan.vocabulary, group.rank);
    keep(context, "logits", logits);
    save_pointer(context, "product", plan.head.product);
    save_pointer(context, "group", plan.head.group);
    context->saved_data["region"] = static_cast<int64_t>(plan.head.region);
    context->saved_data["first"] = range.first;
    context->saved_data["columns"] = range.columns;
    context->saved_data["shape"] = logits_SBV.sizes();
    if (plan.training && takes_one_pass(plan.head, logits)) {
      context->save_for_backward({kept.x, kept.inverse});
      return cross_entropy_with_gradient_(logits, rows, range).view(targets.sizes());
    }
    CrossEntropyStatistics statistics = cross_entropy_statistics(logits, rows, range);
    combine(statistics, group);
    context->save_for_backward({kept.x, kept.inverse, rows, statistics.max, statistics.sum_exp});
    return (statistics.sum_exp.log() + statistics.max - statistics.target_logit).view(targets.sizes());
  }

  // Of the logits, for scales [T] of the losses.
  static MatMul::Operand gradient(AutogradContext* context, const LinearCore& head, const at::Tensor& scale) {
    const variable_list saved = context->get_saved_variables();
    const bool lacks_scale = saved.size() == 2;
    if (lacks_scale) {
      const at::Tensor dlogits = take(context, "logits");
      return {dlogits, dlogits, cross_entropy_scale_(dlogits, scale)};
    }
    const VocabRange range{context->saved_data["first"].toInt(), context->saved_data["columns"].toInt()};
    return head.product->output_gradient(
        gradient_of(take(context, "logits"),
                    {.max = saved[3], .sum_exp = saved[4], .targets = saved[2], .scale = scale}, range));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const LinearCore head{.product = saved_pointer<MatMul>(context, "product"),
                          .region = static_cast<ParallelRegion>(context->saved_data["region"].toInt()),
                          .group = saved_pointer<const Group>(context, "group")};
    const std::vector<int64_t> shape = context->saved_data["shape"].toIntVector();
    LinearCore::Returning x = head.restore({saved[0], saved[1]});
    // A temporary: in FP8 the logits are free before the products.
    const MatMul::Operand dlogits = gradient(context, head, gradients[0].reshape(-1).contiguous());
    const at::Tensor dx = head.backward(std::move(x), dlogits, shape, context->needs_input_grad(0));
    return {dx, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor output_losses(const at::Tensor& x_SBH, const LinearCore& head, const at::Tensor& targets_SB,
                         int64_t vocabulary) {
  expect_gradient(head.product->weight());
  const OutputLosses::Plan plan{
      .head = head, .vocabulary = vocabulary, .training = at::GradMode::is_enabled()};
  return OutputLosses::apply(x_SBH, head.product->weight().tensor, targets_SB, plan);
}

}  // namespace teratron
