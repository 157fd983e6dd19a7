// cross_entropy.h
#include "teratron/kernels/loss/cross_entropy.h"

#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Slice {
  at::Tensor logits;
  VocabRange range;
};

/// Cuts [T, vocabulary] into local buffers of `width` columns; the padding of the last ones would ruin the
/// result if it were used.
std::vector<Slice> cut(const at::Tensor& logits, int64_t width, int64_t parts) {
  std::vector<Slice> slices;
  const int64_t vocabulary = logits.size(1);
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t columns = std::clamp<int64_t>(vocabulary - part * width, 0, width);
    at::Tensor local = at::full({logits.size(0), width}, 1e4, logits.options());
    if (columns > 0) local.narrow(1, 0, columns).copy_(logits.narrow(1, part * width, columns));
    slices.push_back({local, {.first = part * width, .columns = columns}});
  }
  return slices;
}

void check_cross_entropy(at::ScalarType type, int64_t vocabulary, int64_t width, int64_t parts) {
  SCOPED_TRACE(fmt::format("{} {} {} {}", at::toString(type), vocabulary, width, parts));
  const at::Tensor logits = randn({9, vocabulary}, type) * 3;
  const at::Tensor targets = at::randint(vocabulary, {9}, at::kLong);
  const auto statistics = type == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor scale = at::rand({9}, at::kDouble).to(statistics);
  scale[3] = 0;
  const at::Tensor z = leaf(logits);
  const at::Tensor loss = -at::log_softmax(z, -1).gather(1, targets.unsqueeze(1)).squeeze(1);
  (loss * f64(scale)).sum().backward();

  std::vector<Slice> slices = cut(logits, width, parts);
  at::Tensor max = at::full({9}, -infinity, statistics), sum = at::zeros({9}, statistics),
             target = sum.clone();
  std::vector<CrossEntropyStatistics> all;
  for (const Slice& s : slices) all.push_back(cross_entropy_statistics(s.logits, targets, s.range));
  for (const auto& s : all) max = at::maximum(max, s.max);
  for (const auto& s : all) {
    sum += s.sum_exp * at::exp(s.max - max);
    target += s.target_logit;
  }
  EXPECT_CLOSE(at::log(sum) + max - target, loss, statistics);
  std::vector<at::Tensor> gradients;
  for (const Slice& s : slices) {
    cross_entropy_gradient_(s.logits, {max, sum, targets, scale}, s.range);
    gradients.push_back(s.logits);
  }
  const at::Tensor gradient = at::cat(gradients, 1);
  EXPECT_CLOSE(gradient.narrow(1, 0, vocabulary), z.grad(), type);
  EXPECT_EQ(gradient.narrow(1, vocabulary, width * parts - vocabulary).abs().sum().item<double>(), 0);
}

TEST(CrossEntropy, VocabParallelMatchesAutograd) {
  for (const auto type : float_types) {
    check_cross_entropy(type, 37, 37, 1);
    check_cross_entropy(type, 37, 16, 3);
    check_cross_entropy(type, 13, 8, 4);  // two ranks hold only padding
    check_cross_entropy(type, 70001, 70008, 1);
  }
}

TEST(CrossEntropy, FusedLossAndGradient) {
  for (const auto type : float_types) {
    SCOPED_TRACE(at::toString(type));
    const auto statistics = type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor logits = randn({5, 40}, type), targets = at::randint(37, {5}, at::kLong);
    const at::Tensor scale = at::tensor({0.25, 0.0, -0.5, 0.5, 0.125}).to(statistics);
    const at::Tensor z = leaf(logits), used = z.narrow(1, 0, 37);
    const at::Tensor loss = at::logsumexp(used, {1}) - at::gather(used, 1, targets.unsqueeze(1)).squeeze(1);
    (loss * scale.to(at::kDouble)).sum().backward();
    EXPECT_CLOSE(cross_entropy_with_gradient_(logits, targets, {.first = 0, .columns = 37}), loss,
                 statistics);
    logits[1].fill_(NAN);
    const at::Tensor largest = cross_entropy_scale_(logits, scale);
    EXPECT_EQ(largest.item<double>(), 0.5);
    EXPECT_CLOSE(f64(logits) * 0.5, z.grad(), type);
  }
}

TEST(CrossEntropy, HugeLogitsDoNotOverflow) {
  const at::Tensor logits = at::tensor({3e4f, 2.9e4f, -3e4f}).unsqueeze(0);
  const auto s = cross_entropy_statistics(logits, at::ones({1}, at::kLong), {.first = 0, .columns = 3});
  EXPECT_EQ(s.max.item<float>(), 3e4f);
  EXPECT_EQ(s.sum_exp.item<float>(), 1);
  EXPECT_EQ(s.target_logit.item<float>(), 2.9e4f);
}

}  // namespace
}  // namespace teratron
