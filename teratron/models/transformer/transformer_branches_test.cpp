// Lists of branches of a program, and their dropouts.
#include "teratron/models/transformer/transformer_branches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/nn/feed_forward.h"

namespace teratron {
namespace {

class Ones : public FeedForward {
 public:
  Ones(const Scope& /*scope*/, const TensorParallel& /*parallel*/) {}
  at::Tensor forward(const at::Tensor& x_SBH, const LayerContext&) override { return at::ones_like(x_SBH); }
};

at::Tensor sum_of_ones(const std::vector<BranchOptions>& branches) {
  constexpr int64_t length = 8, samples = 3;
  const TransformerConfig config{
      .layers = 2,
      .hidden = 64,
      .hidden_dropout = 0.5,
      .branches = [branches](const TransformerConfig&, int64_t) { return branches; }};
  ParameterSet parameters({.dtype = at::kDouble});
  LayerStack stack(Scope(parameters), config, {0, 2}, {}, transformer_layers(config, {}, {}));
  const LayerContext context{.rows = {at::arange(length, at::kLong), length},
                             .dropout_seed = 7,
                             .sample_ids_B = at::tensor({5, 6, 9}, at::kLong),
                             .dropout_row_ids = std::make_shared<DropoutRowIds>(),
                             .training = true};
  const at::Tensor nothing_SBH = at::zeros({length, samples, config.hidden}, at::kDouble);
  return apply_bias_grad(stack.forward(nothing_SBH, context, nullptr));
}

// Where two masks are independent, one of two ones is dropped in half of the elements.
TEST(TransformerBranches, DrawsAMaskOfItsOwnFromAListOfBranchesForAllLayers) {
  const at::Tensor sum =
      sum_of_ones({{.part = "ones", .mixer = mixer_factory<Ones>(), .dropout = own_sites}});
  EXPECT_NEAR(sum.eq(2.0).to(at::kDouble).mean().item<double>(), 0.5, 0.05);
}

TEST(TransformerBranchesDeathTest, RefusesTwoDropoutsOfOneNumber) {
  const BranchOptions one{.part = "one", .mixer = mixer_factory<Ones>(), .dropout = own_sites};
  BranchOptions two = one;
  two.part = "two";
  EXPECT_DEATH(sum_of_ones({one, two}), "branch 'two' has the dropout of another one");
  EXPECT_DEATH(sum_of_ones({{.part = "none", .mixer = mixer_factory<Ones>()}}), "branch 'none'");
}

}  // namespace
}  // namespace teratron
