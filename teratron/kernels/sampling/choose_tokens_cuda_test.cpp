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
      const at::Tensor out = choose_tokens(gpu(all).narrow(1, 0, vocabulary), gpu(parameters),
                                           {.filters = false, .logprobs = true})
                                 .cpu();
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

// f64 logits of a row, divided by the temperature, of the tokens that are kept; others -inf.
at::Tensor kept_logits(const at::Tensor& scaled_V, int64_t top_k, double top_p) {
  const auto [sorted, order] = scaled_V.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  if (top_k > 1) {
    const double last = sorted[std::min(top_k, sorted.size(0)) - 1].item<double>();
    return scaled_V.masked_fill(scaled_V.lt(last), -INFINITY);
  }
  if (top_p == 0.0) return scaled_V;
  const at::Tensor probabilities = sorted.softmax(0);
  const at::Tensor dropped = (probabilities.cumsum(0) - probabilities).gt(top_p);
  return at::empty_like(scaled_V).scatter_(0, order, sorted.masked_fill(dropped, -INFINITY));
}

// bf16 has many equal logits, so that the ends of top-k and top-p are among such.
TEST_F(GpuChooseTokens, DrawsFromTheTokensOfTopKAndTopP) {
  const std::vector<std::pair<int64_t, double>> filters = {{2, 0.0},      {5, 0.0},   {50, 0.0}, {1000, 0.0},
                                                           {400000, 0.0}, {0, 0.011}, {0, 0.31}, {0, 0.9001},
                                                           {0, 0.99901},  {0, 1.0},   {0, 0.0},  {1, 0.0}};
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t vocabulary : {3, 300, 50257, 128256}) {
      const auto rows = 4 * static_cast<int64_t>(filters.size());
      const at::Tensor logits = randn({rows, vocabulary}, type) * 2;
      const at::Tensor wide = logits.to(at::kDouble);
      at::Tensor parameters = at::zeros({rows, 5}, at::kDouble), expected = at::zeros({rows}, at::kLong);
      for (int64_t r = 0; r < rows; ++r) {
        const auto [top_k, top_p] = filters[r % filters.size()];
        const double temperature = 0.5 + 0.3 * static_cast<double>(r % 4);
        const double uniform = (static_cast<double>((7 * r) % rows) + 0.37) / static_cast<double>(rows);
        const int64_t banned = r % 5 == 3 ? wide[r].argmax().item<int64_t>() : -1;
        if (banned >= 0) wide[r][banned] = -1e10;
        parameters[r].copy_(
            at::tensor({temperature, static_cast<double>(top_k), top_p, uniform, static_cast<double>(banned)},
                       at::kDouble));
        const at::Tensor kept = kept_logits(wide[r] / temperature, top_k, top_p).softmax(0).cumsum(0);
        expected[r] = top_k == 1 ? wide[r].argmax() : kept.lt(uniform * kept[vocabulary - 1]).sum();
      }
      const at::Tensor out = choose_tokens(gpu(logits), gpu(parameters), {.logprobs = true}).cpu();
      EXPECT_TRUE(out[0].to(at::kLong).equal(expected)) << at::toString(type) << vocabulary << "\n"
                                                        << at::stack({out[0], expected.to(at::kDouble)});
      const at::Tensor logprobs = wide.log_softmax(1).gather(1, expected.unsqueeze(1)).squeeze(1);
      EXPECT_LT((out[1] - logprobs).abs().max().item<double>(), 1e-9) << at::toString(type) << vocabulary;
    }
  }
}

TEST_F(GpuChooseTokens, ReplacesTokensThatWereNotKnown) {
  const at::Tensor tokens = at::tensor({5, -1, 7, -1}, at::kLong),
                   chosen = at::tensor({1, 2, 3, 4}, at::kDouble);
  const at::Tensor expected = at::tensor({5, 2, 7, 4}, at::kLong);
  EXPECT_TRUE(replace_negative_tokens(tokens, chosen).equal(expected));
  EXPECT_TRUE(replace_negative_tokens(gpu(tokens), gpu(chosen)).cpu().equal(expected));
}

// The first of equal logits is the most probable; -inf is never drawn.
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
