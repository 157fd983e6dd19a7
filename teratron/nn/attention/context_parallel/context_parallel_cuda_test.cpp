// Parts of attention and their merge on the GPU, against the CPU's f64.
#include "teratron/kernels/attention/merge_attention.h"
#include "teratron/nn/attention/context_parallel/partial_attention.h"
#include "teratron/testing/attention_reference.h"

namespace teratron {
namespace {

class ContextParallelGpu : public Gpu {};

// A part [S, B, N, D], which is in memory as [B, S, N, D] if `batch_first`.
AttentionPart random_part(at::IntArrayRef sizes, at::ScalarType type, bool batch_first) {
  at::Tensor y = randn(sizes, type);
  if (batch_first) y = y.transpose(0, 1).contiguous().transpose(0, 1);
  at::Tensor logsumexp = randn({sizes[1], sizes[2], sizes[0]}) * 3.0;
  logsumexp.view({-1})[0].fill_(INFINITY);
  logsumexp.view({-1})[1].fill_(-INFINITY);
  y[0][0][0].fill_(NAN);  // what a kernel left where there are no keys
  return {y, logsumexp};
}

TEST_F(ContextParallelGpu, MergesAsTheCpu) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const int64_t width : {64, 128, 20}) {
      for (const int parts : {1, 2, 4, 7}) {
        SCOPED_TRACE(fmt::format("{}, width {}, {} parts", at::toString(type), width, parts));
        const std::vector<int64_t> sizes = {10, 2, 3, width}, half = {5, 2, 3, width};
        const at::Tensor q = randn(sizes, type);
        AttentionMerge on_cpu(q.to(at::kDouble)), on_gpu(gpu(q));
        for (int i = 0; i < parts; ++i) {
          const bool second = i % 2 == 1;
          AttentionPart part = random_part(second ? half : sizes, type, i % 3 == 1);
          part.first_query = second ? 5 : 0;
          on_cpu.add({part.y_SBND.to(at::kDouble), part.logsumexp_BNS.to(at::kDouble), part.first_query});
          on_gpu.add({gpu(part.y_SBND), gpu(part.logsumexp_BNS), part.first_query});
        }
        const AttentionPart expected = on_cpu.result(), actual = on_gpu.result();
        EXPECT_EQ(actual.y_SBND.scalar_type(), type);
        EXPECT_GPU(actual.y_SBND, expected.y_SBND, type);
        const at::Tensor finite = expected.logsumexp_BNS.isfinite();
        EXPECT_TRUE(at::equal(finite, actual.logsumexp_BNS.isfinite().cpu()));
        EXPECT_LT(relative_error(actual.logsumexp_BNS.cpu().masked_select(finite),
                                 expected.logsumexp_BNS.masked_select(finite)),
                  1e-6);
      }
    }
  }
}

// Two parts of the keys: outputs, log-sum-exp, and gradients from those of the whole.
void expect_parts(const AttentionCase& c, at::ScalarType type) {
  SCOPED_TRACE(fmt::format("{}, {}", at::toString(type), c.name()));
  const AttentionSample sample = random_sample(c, type);
  AttentionRequest on_cpu = request_of(c, sample, 0.2), on_gpu = request_of(c, sample, 0.2);
  for (at::Tensor AttentionRequest::* x :
       {&AttentionRequest::q_SBND, &AttentionRequest::k_SBGD, &AttentionRequest::v_SBGD}) {
    on_cpu.*x = (on_cpu.*x).to(at::kDouble);
    on_gpu.*x = gpu(on_gpu.*x);
  }
  on_gpu.segments = {gpu(on_cpu.segments.cu_seqlens_q), gpu(on_cpu.segments.cu_seqlens_k)};
  const PartialAttention expected = partial_attention(on_cpu), actual = partial_attention(on_gpu);
  const at::Tensor seen = expected.logsumexp_BNS.isfinite();
  const at::Tensor seen_SBN1 = seen.permute({2, 0, 1}).unsqueeze(3);
  EXPECT_LT(relative_error(actual.y_SBND.cpu().masked_fill(seen_SBN1.logical_not(), 0.0), expected.y_SBND),
            2 * tolerance(type));
  EXPECT_LT(relative_error(actual.logsumexp_BNS.cpu().masked_select(seen),
                           expected.logsumexp_BNS.masked_select(seen)),
            1e-3);
  // Part of a whole whose other keys have as much weight and other values.
  const at::Tensor dy = sample.dy_SBF.unflatten(2, {c.heads, c.width});
  const PartialAttention whole{(expected.y_SBND * 0.5).to(type),
                               (expected.logsumexp_BNS.masked_fill(seen.logical_not(), 0.0) + std::log(2.0))};
  const QueryKeyValue d = partial_attention_backward(
      on_cpu, {whole.y_SBND.to(at::kDouble), whole.logsumexp_BNS}, dy.to(at::kDouble));
  const QueryKeyValue g = partial_attention_backward(
      on_gpu, {gpu(whole.y_SBND), gpu(whole.logsumexp_BNS.to(at::kFloat))}, gpu(dy));
  EXPECT_LT(relative_error(g.q_SBND, d.q_SBND), 4 * tolerance(type)) << "dq";
  EXPECT_LT(relative_error(g.k_SBGD, d.k_SBGD), 4 * tolerance(type)) << "dk";
  EXPECT_LT(relative_error(g.v_SBGD, d.v_SBGD), 4 * tolerance(type)) << "dv";
}

TEST_F(ContextParallelGpu, PartsAreThoseOfTheCpu) {
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const int64_t width : {64, 128}) {
      for (const int64_t groups : {1, 4}) {
        AttentionCase c{
            .queries = 128, .keys = 128, .batch = 2, .heads = 4, .groups = groups, .width = width};
        expect_parts(c, type);
        c.mask = Mask::full;
        c.queries = 64;
        expect_parts(c, type);
        c.keys = 192;
        expect_parts(c, type);
        c.batch = 1;
        c.cu_seqlens_q = {0, 0, 10, 64, 64, 64};
        c.cu_seqlens_k = {0, 7, 90, 90, 192, 192};  // queries without keys, and keys without queries
        expect_parts(c, type);
        c.keys = 64;
        c.mask = Mask::causal;
        c.cu_seqlens_q = c.cu_seqlens_k = {0, 1, 20, 64, 64};
        expect_parts(c, type);
      }
    }
  }
}

}  // namespace
}  // namespace teratron
