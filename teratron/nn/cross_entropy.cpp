#include "teratron/nn/cross_entropy.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/cross_entropy.h"
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

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
                            int64_t vocabulary, const Group& group) {
    const VocabRange range = local_range(logits.size(-1), vocabulary, group.rank);
    const at::Tensor rows = targets.reshape(-1).contiguous();
    CrossEntropyStatistics statistics = cross_entropy_statistics(logits, rows, range);
    combine(statistics, group);
    context->save_for_backward({logits, rows, statistics.max, statistics.sum_exp});
    context->saved_data["first"] = range.first;
    context->saved_data["columns"] = range.columns;
    return (statistics.sum_exp.log() + statistics.max - statistics.target_logit).view(targets.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor logits = saved[0].detach();
    const VocabRange range{context->saved_data["first"].toInt(), context->saved_data["columns"].toInt()};
    cross_entropy_gradient_(logits,
                            {.max = saved[2],
                             .sum_exp = saved[3],
                             .targets = saved[1],
                             .scale = gradients[0].reshape(-1).contiguous()},
                            range);
    return {logits, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits_SBV, const at::Tensor& targets_SB,
                                        int64_t vocabulary, const Group& group) {
  return CrossEntropy::apply(logits_SBV.contiguous(), targets_SB, vocabulary, group);
}

}  // namespace teratron
