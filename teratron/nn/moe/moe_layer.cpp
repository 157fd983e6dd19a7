#include "teratron/nn/moe/moe_layer.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/comm/part_communicator.h"
#include "teratron/nn/recompute.h"

namespace teratron {

namespace {

// Tokens that all tensor-parallel ranks have are dispatched from none to the others.
bool replicates_tokens(const TensorParallel& parallel) {
  return parallel.group.size > 1 && !parallel.sequence_parallel;
}

ExpertParallel expert_groups(const std::string& layer, TokenDispatch dispatch, const TensorParallel& parallel,
                             const Mesh& mesh) {
  const bool replicated = dispatch != TokenDispatch::none && replicates_tokens(parallel);
  return {.experts = named_group(mesh.group(Axis::ep), layer),
          .tensor = named_group(replicated ? parallel.group : mesh.group(Axis::etp), layer),
          .both = named_group(mesh.group({Axis::ep, Axis::etp}), layer)};
}

// To which the tokens of this rank's group along `axes` belong.
int64_t count_microbatches(const std::vector<Axis>& axes, const Mesh& mesh) {
  const auto has = [](const std::vector<int64_t>& ranks, int64_t rank) {
    return std::ranges::find(ranks, rank) != ranks.end();
  };
  const RankGroups groups = mesh.grid().groups(axes);
  const auto own = std::ranges::find_if(groups, [&](const auto& group) { return has(group, mesh.rank()); });
  return std::ranges::count_if(
      mesh.grid().groups({Axis::tp, Axis::cp, Axis::pp}), [&](const std::vector<int64_t>& same) {
        return std::ranges::any_of(*own, [&](int64_t rank) { return has(same, rank); });
      });
}

DispatcherOptions dispatcher_options(const MoeOptions& options, const TensorParallel& parallel,
                                     const Mesh& mesh) {
  DispatcherOptions result{.experts = options.experts.experts,
                           .kind = options.dispatch,
                           .replicated = replicates_tokens(parallel)};
  if (!options.router.pad_to_capacity) return result;
  result.tensor_microbatches = count_microbatches({Axis::etp}, mesh);
  result.microbatches = count_microbatches({Axis::etp, Axis::ep}, mesh);
  return result;
}

}  // namespace

// Rows of no expert may hold anything, of which nothing may reach the gradient of the probabilities.
static at::Tensor weighted_rows(const at::Tensor& x_RH, const at::Tensor& probs_R,
                                const Permutation& permutation) {
  const at::Tensor& ends_E = permutation.ends_E;
  const at::Tensor unused_R1 =
      at::arange(x_RH.size(0), ends_E.options()).ge(ends_E.select(0, -1)).unsqueeze(1);
  return (x_RH.masked_fill(unused_R1, 0.0) * probs_R.unsqueeze(1))
      .masked_fill(unused_R1, 0.0)
      .to(x_RH.scalar_type());
}

MoeLayer::MoeLayer(const Scope& scope, const MoeOptions& options, const TensorParallel& parallel,
                   const Mesh& mesh)
    : name_(scope.prefix()),
      recompute_(options.recompute),
      inputs_weighted_(options.inputs_weighted),
      parallel_(expert_groups(name_, options.dispatch, parallel, mesh)),
      first_expert_(parallel_.local(options.experts.experts).first),
      dispatcher_(dispatcher_options(options, parallel, mesh), parallel_) {
  const std::deque<Parameter>& all = scope.set().all();
  const size_t before = all.size();
  router_ = std::make_unique<Router>(scope / "router", options.router, parallel, mesh);
  ExpertsOptions experts = options.experts;
  if (options.latent > 0) {
    create_latent(scope, options, parallel);
    experts.hidden = options.latent;
  }
  experts_ = std::make_unique<Experts>(scope, experts, parallel_);
  if (options.shared)
    shared_ = std::make_unique<SharedExperts>(scope / "shared_experts", *options.shared, parallel);
  for (size_t i = before; i < all.size(); ++i) parameters_.push_back(&scope.set().all()[i]);
}

void MoeLayer::create_latent(const Scope& scope, const MoeOptions& options, const TensorParallel& parallel) {
  const int64_t hidden = options.experts.hidden;
  const auto create = [&](const char* name, std::vector<int64_t> shape, const Init& init) {
    return &(scope / name)
                .parameter("weight", {.shard = Shard::replicated(std::move(shape)),
                                      .init = init,
                                      .grad_sum = parallel.grad_sum()});
  };
  latent_in_ = create("fc1_latent_proj", {options.latent, hidden}, options.latent_in_init);
  latent_out_ = create("fc2_latent_proj", {hidden, options.latent}, options.latent_out_init);
}

void MoeLayer::notify_of_experts(const at::Tensor& y_RH, const Permutation& permutation,
                                 const LayerContext& context) const {
  const at::Tensor ends_E = permutation.ends_E.to(at::kCPU, at::kLong);
  int64_t begin = 0;
  for (int64_t e = 0; e < ends_E.numel(); ++e) {
    const int64_t end = ends_E[e].item<int64_t>();
    context.notify(fmt::format("{}.experts.{}", name_, first_expert_ + e),
                   y_RH.narrow(0, begin, end - begin));
    begin = end;
  }
}

at::Tensor MoeLayer::run(const at::Tensor& x_SBH, const LayerContext& context) {
  const Router::Output routed = router_->forward(x_SBH, context);
  const auto experts = [&](const at::Tensor& x_RH, const at::Tensor& probs_R,
                           const Permutation& permutation) {
    const at::Tensor y_RH = inputs_weighted_ ? experts_->forward(weighted_rows(x_RH, probs_R, permutation),
                                                                 at::ones_like(probs_R), permutation)
                                             : experts_->forward(x_RH, probs_R, permutation);
    if (context.notify) notify_of_experts(y_RH, permutation, context);
    return y_RH;
  };
  at::Tensor shared_SBH;
  const auto beside = [&] {
    if (shared_) shared_SBH = shared_->forward(x_SBH);
  };
  at::Tensor x_TH = as_rows(x_SBH.contiguous());
  if (latent_in_) x_TH = at::matmul(x_TH, autograd_tensor(*latent_in_).t());
  at::Tensor y_TH = dispatcher_.forward(x_TH, routed.routing, routed.kept, {experts, beside});
  if (latent_out_) y_TH = at::matmul(y_TH, autograd_tensor(*latent_out_).t());
  const at::Tensor y_SBH = y_TH.view_as(x_SBH);
  return shared_ ? y_SBH + shared_SBH : y_SBH;
}

at::Tensor MoeLayer::forward(const at::Tensor& x_SBH, const LayerContext& context) {
  if (!recompute_) return run(x_SBH, context);
  return teratron::recompute([this, context](at::TensorList inputs) { return run(inputs[0], context); },
                             {x_SBH}, {.parameters = parameters_});
}

}  // namespace teratron
