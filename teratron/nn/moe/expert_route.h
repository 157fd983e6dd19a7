// Moves T local tokens to the ranks of their experts, and the experts' sums back. U: tokens
// received from all ranks, this one included.
#pragma once

#include <functional>
#include <optional>

#include <ATen/core/ivalue.h>

#include "teratron/nn/moe/all_to_all.h"
#include "teratron/nn/moe/permutation.h"

namespace teratron {

/// Autograd keeps it until backward. All members are collective and without autograd.
class ExpertRoute : public torch::CustomClassHolder {
 public:
  /// x [T, W] of every rank -> [U, W].
  virtual AsyncTensor start(const at::Tensor& x_TW) const = 0;
  /// Sums over the ranks, [T, W], of the rows of `sums_UW`, which `produce` writes for the tokens that it
  /// gets. Overlaps sending one rank's rows with producing the next rank's, if the route supports it.
  using Produce = std::function<void(const TokenSlice& tokens)>;
  virtual at::Tensor add_up(const at::Tensor& sums_UW, const Produce& produce) const = 0;
};

/// All tokens of all ranks, in rank order.
class GatherRoute final : public ExpertRoute {
 public:
  explicit GatherRoute(Group group) : group_(std::move(group)) {}
  AsyncTensor start(const at::Tensor& x_TW) const override { return start_all_gather(x_TW, group_); }
  at::Tensor add_up(const at::Tensor& sums_UW, const Produce& produce) const override;

 private:
  Group group_;
};

/// The rows of `sent`; without it, all rows: those of each destination are consecutive.
class AllToAllRoute final : public ExpertRoute {
 public:
  AllToAllRoute(AllToAll all_to_all, std::optional<Permutation> sent)
      : all_to_all_(std::move(all_to_all)), sent_(std::move(sent)) {}
  AsyncTensor start(const at::Tensor& x_TW) const override;
  at::Tensor add_up(const at::Tensor& sums_UW, const Produce& produce) const override;

 private:
  AllToAll all_to_all_;
  std::optional<Permutation> sent_;
};

using ExpertRoutePtr = c10::intrusive_ptr<ExpertRoute>;

/// x [T, W] -> [U, W]. Differentiable.
at::Tensor bring(const at::Tensor& x_TW, const ExpertRoutePtr& route);
/// bring(), then permute(): the rows of this rank's experts. `arriving`: route->start(x_TH). Differentiable.
at::Tensor permute_arriving(const at::Tensor& x_TH, AsyncTensor& arriving, const ExpertRoutePtr& route,
                            const Permutation& permutation);
/// unpermute(), then the sums over the ranks, which are in fp32 (fp64) and rounded to `dtype` at the end. The
/// adjoint of permute_arriving(); gradients travel in the rows' dtype. Differentiable.
at::Tensor unpermute_returning(const at::Tensor& y_RH, const ExpertRoutePtr& route,
                               const Permutation& permutation, at::ScalarType dtype);

}  // namespace teratron
