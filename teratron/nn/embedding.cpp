#include "teratron/nn/embedding.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/kernels/pointwise/embedding.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// `gradient` has a multiple of ids.numel() rows; those of the same id are summed first.
void accumulate_lookup_grad(Parameter& parameter, const at::Tensor& ids, const at::Tensor& gradient) {
  accumulate_grad(parameter, [&](const at::Tensor& sum, bool add) {
    if (!add) sum.zero_();
    const at::Tensor rows = gradient.reshape({-1, sum.size(1)});
    const at::Tensor id_rows =
        rows.size(0) > ids.numel()
            ? rows.view({ids.numel(), -1, sum.size(1)}).sum(1, false, sum.scalar_type())
            : rows;
    embedding_grad_add_(sum, ids.reshape(-1), id_rows.contiguous());
  });
}

// Rows of a weight that holds the ids [first, first + rows); zeros for other ids.
struct Lookup : torch::autograd::Function<Lookup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& ids,
                            Parameter* parameter, int64_t first) {
    const int64_t count = weight.size(0);
    at::Tensor local = ids;
    at::Tensor elsewhere;
    if (parameter->shard().parts > 1) {
      local = ids - first;
      elsewhere = local.lt(0).logical_or_(local.ge(count));
      local = local.masked_fill(elsewhere, 0);
    }
    context->save_for_backward({local, elsewhere});
    save_pointer(context, "parameter", parameter);
    at::Tensor rows = at::embedding(weight, local);
    if (elsewhere.defined()) rows.masked_fill_(elsewhere.unsqueeze(-1), 0);
    return rows;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor gradient = gradients[0];
    if (saved[1].defined()) gradient = gradient.masked_fill(saved[1].unsqueeze(-1), 0);
    accumulate_lookup_grad(*saved_pointer<Parameter>(context, "parameter"), saved[0], gradient);
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Whether all samples share their ids by stride, as positions do.
bool are_shared(const at::Tensor& ids_SB) {
  return ids_SB.size(1) > 1 && ids_SB.stride(1) == 0;
}

// Adds rows of a weight to x in place.
struct AddLookup : torch::autograd::Function<AddLookup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_SBH, const at::Tensor& weight,
                            const at::Tensor& ids_SB, Parameter* parameter, int64_t first) {
    at::Tensor ids = (are_shared(ids_SB) ? ids_SB.select(1, 0) : ids_SB.reshape(-1)).contiguous();
    if (first > 0) ids = ids + first;
    context->save_for_backward({ids});
    save_pointer(context, "parameter", parameter);
    context->mark_dirty({x_SBH});
    TERATRON_ASSERT(x_SBH.is_contiguous(), "x must be contiguous");
    embedding_add_(x_SBH.flatten(0, 1), weight, ids);
    return x_SBH;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor ids = context->get_saved_variables()[0];
    accumulate_lookup_grad(*saved_pointer<Parameter>(context, "parameter"), ids, gradients[0]);
    return {gradients[0], at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor lookup(Parameter& weight, const at::Tensor& ids) {
  register_use(weight);
  return Lookup::apply(weight.tensor, ids, &weight, weight.shard().index * weight.tensor.size(0));
}

}  // namespace

Shard vocabulary_shard(const VocabularyOptions& options, const Group& group) {
  return Shard::split_padded({options.size, options.hidden}, 0, options.padded, group.size, group.rank);
}

VocabParallelEmbedding::VocabParallelEmbedding(const Scope& scope, const VocabularyOptions& options,
                                               const TensorParallel& parallel)
    : parallel_(parallel),
      weight_(&scope.parameter("weight", {.shard = vocabulary_shard(options, parallel.group),
                                          .init = options.init,
                                          .param_group = ParamGroup::decoupled_lr})) {}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids_SB) {
  const at::Tensor partial_SBH = lookup(*weight_, ids_SB);
  return parallel_.sequence_parallel ? reduce_scatter(partial_SBH, 0, parallel_.group)
                                     : reduce_from(partial_SBH, parallel_.group);
}

Embedding::Embedding(const Scope& scope, const Options& options, const TensorParallel& parallel)
    : weight_(&scope.parameter("weight", {.shard = Shard::replicated({options.count, options.hidden}),
                                          .init = options.init,
                                          .grad_sum = parallel.grad_sum()})),
      first_(options.first) {}

at::Tensor Embedding::add_to_(const at::Tensor& x_SBH, const at::Tensor& ids_SB) {
  register_use(*weight_);
  return AddLookup::apply(x_SBH, weight_->tensor, ids_SB, weight_, first_);
}

}  // namespace teratron
