#include <ATen/ATen.h>

#include "teratron/kernels/sampling/choose_tokens.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

class GpuChooseTokens : public Gpu {};

// Rows are greedy, sampled at several temperatures, and have a banned token that is their most probable one.
TEST_F(GpuChooseTokens, MatchesCumulativeProbabilitiesInFp64) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t vocabulary : {3, 100, 50257, 128256}) {
      constexpr int64_t rows = 24;
      const at::Tensor all = randn({rows, vocabulary + 7}, type) * 3;
      const at::Tensor logits = all.narrow(1, 0, vocabulary);
      at::Tensor parameters = at::zeros({rows, 5}, at::kDouble);
      at::Tensor wide = logits.to(at::kDouble).clone();
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t best = wide[r].argmax().item<int64_t>();
        const double uniform = r == 1 ? 1.0 : (static_cast<double>(r) + 0.37) / rows;
        parameters[r].copy_(at::tensor({0.3 + 0.2 * static_cast<double>(r % 5), r % 3 == 0 ? 1.0 : 0.0, 0.0,
                                        uniform, r % 4 == 3 ? static_cast<double>(best) : -1.0},
                                       at::kDouble));
        if (r % 4 == 3) wide[r][best] = -1e10;
      }
      const at::Tensor out =
          choose_tokens(gpu(all).narrow(1, 0, vocabulary), gpu(parameters), {.logprobs = true}).cpu();
      const at::Tensor cumulative = (wide / parameters.narrow(1, 0, 1)).softmax(1).cumsum(1);
      const at::Tensor target = parameters.narrow(1, 3, 1) * cumulative.narrow(1, vocabulary - 1, 1);
      const at::Tensor drawn = cumulative.lt(target).sum(1).clamp_max(vocabulary - 1);
      const at::Tensor expected = at::where(parameters.select(1, 1).eq(1), wide.argmax(1), drawn);
      const at::Tensor ids = out[0].to(at::kLong);
      // The last probabilities vanish against the sum: u = 1 may end at any of them.
      const at::Tensor certain = parameters.select(1, 3).lt(1.0).logical_or(parameters.select(1, 1).eq(1));
      EXPECT_TRUE(ids.masked_select(certain).equal(expected.masked_select(certain)))
          << at::toString(type) << vocabulary;
      const at::Tensor logprobs = wide.log_softmax(1).gather(1, ids.unsqueeze(1)).squeeze(1);
      EXPECT_LT((out[1] - logprobs).abs().max().item<double>(), 1e-9) << at::toString(type) << vocabulary;
      const at::Tensor greedy =
          choose_tokens(gpu(all).narrow(1, 0, vocabulary), gpu(parameters), {.samples = false}).cpu();
      EXPECT_TRUE(greedy[0].to(at::kLong).equal(wide.argmax(1)));
    }
  }
}

// Of equal logits the first is the most probable; -inf is never drawn.
TEST_F(GpuChooseTokens, BreaksTiesAndSkipsImpossibleTokens) {
  at::Tensor logits = at::full({2, 1000}, -INFINITY);
  for (const int64_t id : {700, 13, 999}) logits.select(1, id).fill_(2.0);
  const at::Tensor parameters =
      at::tensor({1.0, 1.0, 0.0, 0.5, -1.0, 1.0, 0.0, 0.0, 1.0, -1.0}, at::kDouble).view({2, 5});
  const at::Tensor out = choose_tokens(gpu(logits), gpu(parameters), {}).cpu();
  EXPECT_EQ(out[0][0].item<double>(), 13);
  EXPECT_EQ(out[0][1].item<double>(), 999);
}

}  // namespace
}  // namespace teratron
