#include "teratron/nn/embedding.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/comm/collectives.h"
#include "teratron/kernels/embedding.h"
#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

// Whether all samples have the same ids, and say so by their stride, as positions do.
bool are_shared(const at::Tensor& ids) {
  return ids.dim() == 2 && ids.size(1) > 1 && ids.stride(1) == 0;
}

at::Tensor sum_over_samples(const at::Tensor& gradient_SBH) {
  return gradient_SBH.sum({1}, /*keepdim=*/true,
                          gradient_SBH.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// Rows of a weight that holds the ids [first, first + rows); other ids give zeros. What samples share is looked up once.
struct Lookup : torch::autograd::Function<Lookup> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& ids, Parameter* parameter, int64_t first) {
    const int64_t count = weight.size(0);
    at::Tensor local = are_shared(ids) ? ids.narrow(1, 0, 1) : ids;
    at::Tensor elsewhere;
    if (parameter->shard().parts > 1) {
      local = local - first;
      elsewhere = local.lt(0).logical_or_(local.ge(count));
      local = local.masked_fill(elsewhere, 0);
    }
    context->save_for_backward({local, elsewhere});
    save_pointer(context, "parameter", parameter);
    at::Tensor rows = at::embedding(weight, local);
    if (elsewhere.defined()) rows.masked_fill_(elsewhere.unsqueeze(-1), 0);
    return are_shared(ids) ? rows.expand({ids.size(0), ids.size(1), rows.size(2)}) : rows;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    Parameter& parameter = *saved_pointer<Parameter>(context, "parameter");
    at::Tensor gradient = gradients[0];
    if (saved[0].numel() < gradient.numel() / gradient.size(-1)) gradient = sum_over_samples(gradient);
    if (saved[1].defined()) gradient = gradient.masked_fill(saved[1].unsqueeze(-1), 0);
    accumulate_gradient(parameter, [&](const at::Tensor& sum, bool add) {
      if (!add) sum.zero_();
      add_rows_(sum, saved[0].reshape(-1), gradient.reshape({-1, sum.size(1)}).contiguous());
    });
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor lookup(Parameter& weight, const at::Tensor& ids) {
  expect_gradient(weight);
  return Lookup::apply(weight.tensor, ids, &weight, weight.shard().index * weight.tensor.size(0));
}

}  // namespace

Shard vocabulary_shard(const VocabularyOptions& options, const Group& group) {
  return Shard::cut_padded({options.size, options.hidden}, 0, options.padded, group.size, group.rank);
}

VocabParallelEmbedding::VocabParallelEmbedding(const Scope& scope, const VocabularyOptions& options,
                                               const TensorParallel& parallel)
    : parallel_(parallel),
      weight_(&scope.parameter("weight",
                               {.shard = vocabulary_shard(options, parallel.group), .init = options.init})) {}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids_SB) {
  const at::Tensor partial_SBH = lookup(*weight_, ids_SB);
  return parallel_.sequence_parallel ? reduce_scatter(partial_SBH, 0, parallel_.group)
                                     : reduce_from(partial_SBH, parallel_.group);
}

Embedding::Embedding(const Scope& scope, const Options& options, const TensorParallel& parallel)
    : weight_(&scope.parameter("weight", {.shard = Shard::replicated({options.count, options.hidden}),
                                          .init = options.init,
                                          .sum_over_tensor_parallel = parallel.sequence_parallel})) {}

at::Tensor Embedding::forward(const at::Tensor& ids_SB) {
  return lookup(*weight_, ids_SB);
}

}  // namespace teratron
