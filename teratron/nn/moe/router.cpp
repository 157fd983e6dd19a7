#include "teratron/nn/moe/router.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/comm/part_communicator.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/moe/load_balancing.h"
#include "teratron/nn/moe/random.h"
#include "teratron/nn/moe/statistics.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x W^T in a given dtype; the weight gradient is not rounded to the model's.
struct RouterGemm : torch::autograd::Function<RouterGemm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TH, const at::Tensor& /*anchor*/,
                            Parameter* weight, at::ScalarType dtype) {
    context->save_for_backward({x_TH});
    save_pointer(context, "weight", weight);
    return at::matmul(x_TH.to(dtype), weight->tensor.detach().to(dtype).t());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x_TH = context->get_saved_variables()[0];
    auto& weight = *saved_pointer<Parameter>(context, "weight");
    const at::ScalarType wide = main_grad_dtype(gradients[0].scalar_type());
    const at::Tensor dl_TE = gradients[0].to(wide);
    accumulate_grad(weight, dl_TE.t().matmul(x_TH.to(wide)));
    return {dl_TE.matmul(weight.tensor.detach().to(wide)).to(x_TH.scalar_type()), at::Tensor(), at::Tensor(),
            at::Tensor()};
  }
};

void sum_over(const at::Tensor& x, const Group& group) {
  if (group.size > 1) group.communicator->all_reduce(x, ReduceOp::sum).wait();
}

bool records(const LayerContext& context) {
  return context.training && at::GradMode::is_enabled();
}

}  // namespace

// Losses of this rank's tokens, without coefficients; undefined: not in use.
struct Router::Losses {
  at::Tensor aux, sequence, global, z;
};

Router::Router(const Scope& scope, const RouterOptions& options, const TensorParallel& parallel,
               const Mesh& mesh)
    : options_(options),
      name_(scope.prefix()),
      parallel_(parallel),
      shards_(named_group(
          parallel.sequence_parallel ? mesh.group({Axis::tp, Axis::cp}) : mesh.group(Axis::cp), name_)),
      data_parallel_(named_group(mesh.data_parallel(), name_)),
      weight_(scope.parameter("weight", {.shard = Shard::replicated({options.experts, options.hidden}),
                                         .init = options.init,
                                         .grad_sum = parallel.grad_sum()})) {
  if (parallel.sequence_parallel) sequence_shards_ = parallel.group;
  parameters_.push_back(&weight_);
  if (options.bias) {
    bias_ = &scope.parameter("bias", {.shard = Shard::replicated({options.experts}),
                                      .param_group = ParamGroup::no_weight_decay,
                                      .grad_sum = parallel.grad_sum()});
    parameters_.push_back(bias_);
  }
  ParameterSet& set = scope.set();
  const auto numbers = at::TensorOptions().dtype(at::kFloat).device(set.options().device);
  if (options.expert_bias) {
    expert_bias_E_ = at::zeros({options.experts}, numbers);
    step_counts_E_ = at::zeros({options.experts}, numbers.dtype(at::kLong));
    set.register_buffer({.name = scope.prefix() + ".expert_bias",
                         .shard = Shard::replicated({options.experts}),
                         .tensor = expert_bias_E_});
    set.on_step_end([bias = expert_bias_E_, counts = step_counts_E_, rate = options.expert_bias_rate,
                     weight = &weight_](const Mesh& mesh) {
      if (weight->options.trainable) {  // a frozen router chooses as before
        if (mesh.replicas().size > 1) mesh.replicas().communicator->all_reduce(counts, ReduceOp::sum).wait();
        update_expert_bias_(bias, counts, rate);
      }
      at::Tensor(counts).zero_();
    });
  }
  if (options.global_aux_loss > 0.0) {
    global_counts_E_ = at::zeros({options.experts}, numbers.dtype(at::kDouble));
    global_batches_ = at::zeros({}, numbers.dtype(at::kDouble));
    set.on_step_end([counts = global_counts_E_, batches = global_batches_](const Mesh&) {
      at::Tensor(counts).zero_();
      at::Tensor(batches).zero_();
    });
  }
}

at::Tensor Router::own_shard(const at::Tensor& all) const {
  const int64_t rows = all.size(0) / shards_.size;
  return all.narrow(0, shards_.rank * rows, rows);
}

at::Tensor Router::random_rows(const at::Tensor& x_SBH, const LayerContext& context, int64_t columns) const {
  const SequenceRows& rows = context.rows;
  TERATRON_ASSERT(rows.rows_S.defined() && context.sample_ids_B.defined(), "a router without row ids");
  const at::Tensor ids_T =
      row_ids({parallel_.sequence_shard(rows.rows_S), rows.total, rows.of_run}, context.sample_ids_B);
  TERATRON_ASSERT(ids_T.numel() == x_SBH.size(0) * x_SBH.size(1));
  return uniform_rows({context.dropout_seed, options_.random_site}, ids_T, columns);
}

at::Tensor Router::logits(const at::Tensor& x_SBH, const LayerContext& context) {
  at::Tensor x_TH = as_rows(x_SBH);
  if (options_.jitter > 0.0 && context.training) {
    const at::Tensor uniform = random_rows(x_SBH, context, options_.hidden);
    x_TH = x_TH * (1.0 - options_.jitter + 2.0 * options_.jitter * uniform).to(x_TH.scalar_type());
  }
  register_use(weight_);
  const at::ScalarType dtype = options_.dtype.value_or(x_SBH.scalar_type());
  at::Tensor logits_TE = RouterGemm::apply(x_TH, grad_anchor({&weight_}), &weight_, dtype);
  if (bias_) logits_TE = logits_TE + autograd_tensor(*bias_).to(dtype);
  if (!options_.force_balance || !context.training) return logits_TE;
  const at::Tensor random = random_rows(x_SBH, context, options_.experts).to(dtype);
  return logits_TE + (random - logits_TE).detach();
}

Routing Router::choose(const at::Tensor& logits_TE, const LayerContext& context) const {
  if (!options_.sinkhorn) return route(logits_TE, expert_bias_E_, options_.routing);
  at::Tensor scores_TE = logits_TE;
  if (context.training) {
    const at::Tensor all = logits_TE.detach();
    scores_TE = own_shard(sinkhorn(shards_.size > 1 ? all_gather_values(all, 0, shards_) : all));
  }
  return route_to(logits_TE, top_experts(scores_TE, options_.routing.topk));
}

// In the order of the whole sequences, by which the first tokens are kept and ties are decided.
KeptChoices Router::kept(const Routing& routing, const LayerContext& context) const {
  if (options_.capacity_factor <= 0.0) return {};
  const ContextCut* const cut = context.context_parallel.cut.get();
  const auto gathered = [&](const at::Tensor& x_TK) {
    if (shards_.size == 1) return x_TK;
    const at::Tensor all = all_gather_values(x_TK, 0, shards_);
    return cut ? all.index_select(0, cut->order) : all;
  };
  const Routing all{gathered(routing.experts_TK), gathered(routing.probs_TK.detach())};
  const int64_t capacity = expert_capacity(all.experts_TK.size(0), options_.routing.topk, options_.experts,
                                           options_.capacity_factor);
  const at::Tensor kept_TK = kept_within_capacity(all, {options_.experts, capacity, options_.drop_policy});
  return {own_shard(cut ? kept_TK.index_select(0, cut->inverse_order) : kept_TK),
          options_.pad_to_capacity ? capacity : 0};
}

Router::Losses Router::losses(const at::Tensor& logits_TE, int64_t batch) {
  const RouterOptions& o = options_;
  const BalanceOptions pool{o.routing.topk, logits_TE.size(0) * shards_.size};
  Losses losses;
  if (o.z_loss > 0.0) losses.z = router_z_loss(logits_TE, pool.tokens);
  if (o.aux_loss + o.seq_aux_loss + o.global_aux_loss == 0.0) return losses;
  const at::Tensor probs_TE = normalized_scores(logits_TE, o.routing.score);
  // [B, E], without bias, groups and capacity.
  const at::Tensor chosen_SBK = top_experts(probs_TE, o.routing.topk).unflatten(0, {-1, batch});
  const at::Tensor sequence = at::arange(batch, chosen_SBK.options()).view({1, -1, 1}) * o.experts;
  const at::Tensor counts_BE = expert_counts(chosen_SBK + sequence, batch * o.experts).view({batch, -1});
  sum_over(counts_BE, shards_);
  const at::Tensor counts_E = counts_BE.sum(0);
  if (o.aux_loss > 0.0) losses.aux = load_balancing_loss(probs_TE, counts_E, pool);
  if (o.seq_aux_loss > 0.0) {
    losses.sequence = sequence_balancing_loss(probs_TE.unflatten(0, {-1, batch}), counts_BE,
                                              {o.routing.topk, pool.tokens / batch});
  }
  if (o.global_aux_loss > 0.0) {
    const at::Tensor all_E = counts_E.to(at::kDouble);
    sum_over(all_E, data_parallel_);
    global_counts_E_.add_(all_E);
    global_batches_.add_(static_cast<double>(data_parallel_.size));
    const at::Tensor mean_E = (global_counts_E_ / global_batches_).to(probs_TE.scalar_type());
    losses.global = load_balancing_loss(probs_TE, mean_E, pool);
  }
  return losses;
}

void Router::record(const Losses& losses, const Output& output, const LayerContext& context) {
  using S = ExpertStatistics;
  const bool measured = context.auxiliary.sums.defined() && context.auxiliary.sums.numel() > 0;
  if (!measured && !step_counts_E_.defined()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor counts_E = expert_counts(output.routing.experts_TK, options_.experts, output.kept.kept_TK);
  const auto numbers = counts_E.options().dtype(at::kDouble);
  const at::Tensor all = at::zeros({S::columns(options_.experts)}, numbers);
  const auto choices = static_cast<double>(output.routing.experts_TK.numel());
  all.narrow(0, S::loads, options_.experts).copy_(counts_E);
  all.select(0, S::choices).fill_(choices);
  all.select(0, S::dropped).copy_(counts_E.sum().neg().add(choices));
  const std::pair<S::Column, const at::Tensor*> reported[] = {{S::load_balancing_loss, &losses.aux},
                                                              {S::seq_load_balancing_loss, &losses.sequence},
                                                              {S::global_load_balancing_loss, &losses.global},
                                                              {S::z_loss, &losses.z}};
  for (const auto& [column, loss] : reported) {
    if (loss->defined()) all.select(0, column).copy_(*loss);
  }
  // The engine adds up those of context-parallel ranks.
  sum_over(all, sequence_shards_);
  all.select(0, S::microbatches).fill_(1.0 / static_cast<double>(context.context_parallel.size()));
  if (step_counts_E_.defined()) step_counts_E_.add_(all.narrow(0, S::loads, options_.experts).to(at::kLong));
  if (measured) context.auxiliary.sums.narrow(0, options_.first_sum, all.numel()).add_(all);
}

Router::Output Router::forward(const at::Tensor& x_SBH, const LayerContext& context) {
  const at::Tensor logits_TE = logits(x_SBH, context);
  for (int64_t e = 0; context.notify && e < options_.experts; ++e)
    context.notify(fmt::format("{}, expert {}", name_, e), logits_TE.select(1, e));
  Output output{choose(logits_TE, context), {}};
  if (context.training) output.kept = kept(output.routing, context);
  if (!records(context)) return output;
  const Losses own = losses(logits_TE, x_SBH.size(1));
  const std::pair<double, const at::Tensor*> weighted[] = {{options_.aux_loss, &own.aux},
                                                           {options_.seq_aux_loss, &own.sequence},
                                                           {options_.global_aux_loss, &own.global},
                                                           {options_.z_loss, &own.z}};
  at::Tensor total;
  for (const auto& [coefficient, loss] : weighted) {
    if (!loss->defined()) continue;
    const at::Tensor term = *loss * coefficient;
    total = total.defined() ? total + term : term;
  }
  record(own, output, context);
  const AuxiliaryLosses& auxiliary = context.auxiliary;
  if (!total.defined() || !auxiliary.scale.defined()) return output;
  const auto tokens = static_cast<double>(logits_TE.size(0) * shards_.size);
  const at::Tensor scale = auxiliary.per_token ? auxiliary.scale * tokens : auxiliary.scale;
  output.routing.probs_TK = attach_loss(output.routing.probs_TK, total, scale);
  return output;
}

}  // namespace teratron
