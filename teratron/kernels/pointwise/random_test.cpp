// base/philox.h, random_fill.h and dropout.h
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/kernels/pointwise/random_fill.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

PhiloxWords draw(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const auto join = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
  return philox({.seed = join(key[0], key[1]), .tensor = join(counter[2], counter[3])},
                join(counter[0], counter[1]));
}

TEST(Philox, MatchesKnownAnswers) {
  const auto expect = [](const PhiloxWords& actual, std::array<uint32_t, 4> words) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(actual.word[i], words[i]) << i;
  };
  constexpr uint32_t all = 0xFFFFFFFFu;
  expect(draw({0, 0, 0, 0}, {0, 0}), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect(draw({all, all, all, all}, {all, all}), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect(draw({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, NormalMatchesBoxMuller) {
  double worst = 0;
  for (uint32_t i = 0; i < 200000; ++i) {
    const uint32_t u = i * 2654435761u + (i % 7 == 0 ? 0 : 12345u), v = i * 40503u * 97u;
    const double radius = std::sqrt(-2 * std::log((u + 0.5) / 0x1p32)), angle = 2 * M_PI * v / 0x1p32;
    const NormalPair pair = normal_from(u, v);
    worst = std::max({worst, std::abs(pair.even - radius * std::cos(angle)),
                      std::abs(pair.odd - radius * std::sin(angle))});
  }
  EXPECT_LT(worst, 3e-6);
  EXPECT_LT(normal_from(0, 0).even, 6.77f);
  EXPECT_TRUE(std::isfinite(normal_from(0xFFFFFFFFu, 0xFFFFFFFFu).odd));
}

RandomFill fill(Distribution distribution) {
  return {.key = {.seed = 1234, .tensor = 77}, .distribution = distribution, .offset = 0.5, .scale = 2};
}

TEST(RandomFill, MatchesItsDistribution) {
  at::Tensor x = at::empty({1000, 1000}, at::kDouble);
  random_fill_(x, Shard::replicated({1000, 1000}), fill(Distribution::normal));
  const at::Tensor z = (x - 0.5) / 2;
  EXPECT_NEAR(z.mean().item<double>(), 0, 4e-3);
  EXPECT_NEAR(z.var().item<double>(), 1, 6e-3);
  EXPECT_NEAR(z.pow(3).mean().item<double>(), 0, 1.2e-2);
  EXPECT_NEAR(z.pow(4).mean().item<double>(), 3, 4e-2);
  const at::Tensor pairs = z.view({-1, 2});
  EXPECT_NEAR((pairs.select(1, 0) * pairs.select(1, 1)).mean().item<double>(), 0, 6e-3)
      << "pairs are independent";
  // Kolmogorov-Smirnov distance to the normal distribution; 1.95 / sqrt(n) is exceeded once in a thousand
  // draws.
  const at::Tensor cdf = 0.5 * (1 + at::erf(std::get<0>(z.view(-1).sort()) / std::sqrt(2.0)));
  const at::Tensor rank = (at::arange(1000000, at::kDouble) + 0.5) / 1e6;
  EXPECT_LT((cdf - rank).abs().max().item<double>(), 1.95e-3);

  random_fill_(x, Shard::replicated({1000, 1000}), fill(Distribution::uniform));
  const at::Tensor u = (x - 0.5) / 2;
  EXPECT_LE(u.abs().max().item<double>(), 1);
  EXPECT_NEAR(u.mean().item<double>(), 0, 2.5e-3);
  EXPECT_NEAR(u.var().item<double>(), 1.0 / 3, 2e-3);
}

TEST(RandomFill, ShardsMatchTheWholeTensor) {
  const RandomFill how = fill(Distribution::normal);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{12, 7}, {12}, {4, 6, 5}, {2, 12, 3, 3}}) {
    at::Tensor whole = at::empty(shape);
    random_fill_(whole, Shard::replicated(shape), how);
    for (int64_t dim = 0; dim < whole.dim(); ++dim) {
      if (shape[dim] % 2 != 0) continue;
      for (const int64_t index : {0, 1}) {
        const Shard shard = Shard::split(shape, dim, 2, index);
        at::Tensor local = at::empty(shard.local_shape());
        random_fill_(local, shard, how);
        EXPECT_TRUE(at::equal(local, whole.chunk(2, dim)[index])) << dim;
      }
    }
  }
}

TEST(RandomFill, SegmentsAndPaddingKeepGlobalIndices) {
  const RandomFill how = fill(Distribution::normal);
  at::Tensor whole = at::empty({12, 5});
  random_fill_(whole, Shard::replicated({12, 5}), how);
  const Shard gate_up = Shard::split_segments({12, 5}, 0, {6, 6}, 2, 1);
  at::Tensor local = at::empty(gate_up.local_shape());
  random_fill_(local, gate_up, how);
  EXPECT_TRUE(at::equal(local, at::cat({whole.narrow(0, 3, 3), whole.narrow(0, 9, 3)})));

  at::Tensor rows = at::full({8, 5}, 7.f);
  random_fill_(rows, Shard::split_padded({12, 5}, 0, 16, 2, 1), how);
  EXPECT_TRUE(at::equal(rows.narrow(0, 0, 4), whole.narrow(0, 8, 4)));
  EXPECT_EQ(rows.narrow(0, 4, 4).abs().sum().item<float>(), 0) << "padding is zero";
}

TEST(RandomFill, OtherDtypesAreRoundedF32) {
  const RandomFill how = fill(Distribution::normal);
  const Shard shard = Shard::replicated({33});
  at::Tensor x = at::empty({33});
  random_fill_(x, shard, how);
  for (const auto type : float_types) {
    at::Tensor y = at::empty({33}, type);
    random_fill_(y, shard, how);
    EXPECT_TRUE(at::equal(y, x.to(type)));
  }
}

Dropout half_dropout(int64_t columns = 0) {
  return {.p = 0.25, .key = {.seed = 5, .tensor = 6}, .where = {.columns = columns}};
}

TEST(Dropout, MatchesProbabilityAndMean) {
  const at::Tensor y = dropout(at::ones({1000, 1001}), half_dropout());
  EXPECT_NEAR((y == 0).to(at::kDouble).mean().item<double>(), 0.25, 2e-3);
  EXPECT_NEAR(y.max().item<double>(), 1 / 0.75, 1e-6);
  EXPECT_NEAR(y.mean().item<double>(), 1, 3e-3);
}

TEST(Dropout, ZeroIsIdentityAndOneIsZero) {
  const at::Tensor x = at::randn({3, 5});
  EXPECT_TRUE(at::equal(dropout(x, {.p = 0}), x));
  EXPECT_EQ(dropout(x, {.p = 1}).abs().sum().item<float>(), 0);
}

TEST(Dropout, ShardsMatchTheWholeMask) {
  const at::Tensor x = at::randn({12, 21});
  const at::Tensor whole = dropout(x, half_dropout());
  Dropout cut = half_dropout(21);
  cut.where.first_row = 5;
  cut.where.first_column = 3;
  const at::Tensor part = x.narrow(0, 5, 4).narrow(1, 3, 10).contiguous();
  EXPECT_TRUE(at::equal(dropout(part, cut), whole.narrow(0, 5, 4).narrow(1, 3, 10)));

  Dropout picked = half_dropout();
  picked.where.rows = at::tensor({11, 0, 4}, at::kLong);
  EXPECT_TRUE(at::equal(dropout(x.index_select(0, picked.where.rows), picked),
                        whole.index_select(0, picked.where.rows)));
}

TEST(Dropout, MasksDifferByTensorAndSeed) {
  const at::Tensor ones = at::ones({64, 64});
  const at::Tensor mask = dropout(ones, half_dropout());
  for (const RandomKey key : {RandomKey{5, 7}, RandomKey{6, 6}, RandomKey{5 + (uint64_t{1} << 32), 6}}) {
    Dropout other = half_dropout();
    other.key = key;
    const double agree = (dropout(ones, other) == mask).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(agree, 0.75 * 0.75 + 0.25 * 0.25, 0.03);
  }
}

TEST(BiasDropoutAdd, MatchesReference) {
  for (const auto type : float_types) {
    const at::Tensor x = randn({9, 2, 13}, type), bias = randn({13}, type),
                     residual = randn({9, 2, 13}, type);
    const at::Tensor mask = dropout(at::ones({9, 2, 13}, at::kDouble), half_dropout());
    EXPECT_CLOSE(bias_dropout_add(x, bias, residual, half_dropout()),
                 (f64(x) + f64(bias)) * mask + f64(residual), type);
    EXPECT_CLOSE(dropout(x, half_dropout()), f64(x) * mask, type);
  }
}

}  // namespace
}  // namespace teratron
