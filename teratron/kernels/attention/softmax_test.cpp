// cross_entropy.h and softmax.h
#include "teratron/kernels/attention/softmax.h"

#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Slice {
  at::Tensor logits;
  VocabRange range;
};

/// Cuts [T, vocabulary] into local buffers of `width` columns; the last ones are filled with padding that would ruin
/// the result if it were used.
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

TEST(CrossEntropy, AnyCutOfTheVocabularyMatchesAutograd) {
  for (const auto type : float_types) {
    check_cross_entropy(type, 37, 37, 1);
    check_cross_entropy(type, 37, 16, 3);
    check_cross_entropy(type, 13, 8, 4);  // two ranks hold padding alone
    check_cross_entropy(type, 70001, 70008, 1);
  }
}

TEST(CrossEntropy, LossAndUnscaledGradientAtOnce) {
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

at::Tensor allowed(const SoftmaxOptions& o, const at::Tensor& scores) {
  const int64_t queries = scores.size(2), keys = scores.size(3);
  at::Tensor ok = at::ones(scores.sizes(), at::kBool);
  if (o.causal) ok = ok & at::ones({queries, keys}, at::kBool).tril(keys - queries);
  if (o.mask.defined()) ok = ok & ~o.mask;
  return ok;
}

void check_softmax(at::ScalarType type, const SoftmaxOptions& options, int64_t queries, int64_t keys) {
  const at::Tensor scores = randn({2, 3, queries, keys}, type) * 2;
  const at::Tensor z = leaf(scores);
  const at::Tensor ok = allowed(options, scores);
  at::Tensor biased = z * options.scale;
  if (options.slopes.defined()) {
    for (int64_t head = 0; head < 3; ++head) {
      for (int64_t i = 0; i < queries; ++i) {
        for (int64_t j = 0; j < keys; ++j) {
          biased.select(1, head).select(1, i).select(1, j).add_(
              options.slopes[head].item<double>() * static_cast<double>(j - i - (keys - queries)));
        }
      }
    }
  }
  const at::Tensor weights = at::exp(biased) * ok;
  const at::Tensor sum = weights.sum(-1, true);
  const at::Tensor p = weights / at::where(sum == 0, at::ones({}, at::kDouble), sum);
  at::Tensor dirty = scores.clone();
  dirty.masked_fill_(~ok, std::numeric_limits<double>::quiet_NaN());
  const SoftmaxOutput out = softmax_forward(dirty, options);
  EXPECT_CLOSE(out.probabilities, p, type);
  at::Tensor y = p;
  if (options.dropout.p > 0) y = p * dropout(at::ones(scores.sizes(), at::kDouble), options.dropout);
  EXPECT_CLOSE(out.y, y, type);
  const at::Tensor dy = randn(scores.sizes(), type);
  y.backward(f64(dy));
  // The rounding of P enters the backward twice.
  EXPECT_LT(relative_error(softmax_backward(dy, out.probabilities, options), z.grad()), 2 * tolerance(type));
}

TEST(Softmax, MatchesAutogradUnderEveryMask) {
  for (const auto type : float_types) {
    const at::Tensor mask = at::rand({2, 1, 7, 9}) < 0.4;
    mask.select(2, 2).fill_(true);  // a row without keys
    check_softmax(type, {.scale = 0.3}, 7, 9);
    check_softmax(type, {.scale = 0.5, .causal = true}, 7, 7);
    check_softmax(type, {.scale = 0.5, .causal = true}, 7, 9);
    check_softmax(type, {.scale = 0.5, .causal = true}, 9, 7);  // the first queries see nothing
    check_softmax(type, {.scale = 1, .mask = mask}, 7, 9);
    const auto arithmetic = type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor slopes = at::tensor({0.5, 0.25, 0.0}, at::kDouble).to(arithmetic);
    check_softmax(type, {.scale = 0.4, .causal = true, .mask = mask, .slopes = slopes}, 7, 9);
    check_softmax(type, {.scale = 1, .causal = true, .mask = mask, .dropout = {.p = 0.3, .key = {1, 2}}}, 7,
                  9);
  }
}

}  // namespace
}  // namespace teratron
