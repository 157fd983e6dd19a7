// attention.h on the CPU
#include <fstream>

#include "teratron/testing/attention_reference.h"

namespace teratron {
namespace {

// fp32 sums and exponentials; half precision rounds scores' gradients and outputs.
double attention_tolerance(at::ScalarType type) {
  return type == at::kFloat ? 1e-5 : 2 * tolerance(type);
}

// Zero slopes change nothing but leave only math.
AttentionRequest by_math(AttentionRequest request) {
  const at::ScalarType type = request.q_SBND.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  request.alibi_slopes = at::zeros({request.q_SBND.size(2)}, request.q_SBND.options().dtype(type));
  return request;
}

TEST(Attention, MatchesExplicitMasks) {
  for (const AttentionCase& c : attention_cases(8)) {
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("{}, {}", at::toString(type), c.name()));
      const AttentionSample sample = random_sample(c, type);
      const AttentionRequest request = request_of(c, sample, 0.4);
      const AttentionResult expected = reference(c, sample, 0.4);
      EXPECT_EQ(attention_backend(request), "flash-cpu");
      expect_result(run_attention(request, sample.dy_SBF), expected, attention_tolerance(type));
      EXPECT_EQ(attention_backend(by_math(request)), "math");
      expect_result(run_attention(by_math(request), sample.dy_SBF), expected, attention_tolerance(type));
    }
  }
}

TEST(Attention, TakesValuesOfAnotherWidth) {
  for (AttentionCase c : attention_cases(8)) {
    for (const int64_t v_width : {5, 12}) {
      c.v_width = v_width;
      SCOPED_TRACE(c.name());
      const AttentionSample sample = random_sample(c, at::kDouble);
      const AttentionRequest request = request_of(c, sample, 0.4);
      EXPECT_EQ(attention_backend(request), "math");
      expect_result(run_attention(request, sample.dy_SBF), reference(c, sample, 0.4), 1e-12);
    }
  }
}

TEST(Attention, AddsBiasesByDistance) {
  at::manual_seed(5);  // bf16 is close to its tolerance: the samples must not depend on other tests
  for (const AttentionCase& c : attention_cases(8)) {
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("{}, {}", at::toString(type), c.name()));
      AttentionSample sample = random_sample(c, type);
      sample.distance_bias = random_distance_bias(c, type);
      AttentionRequest request = request_of(c, sample, 0.4);
      EXPECT_EQ(attention_backend(request), "math");
      const AttentionResult expected = reference(c, sample, 0.4);
      const AttentionResult actual = run_attention(request, sample.dy_SBF);
      expect_result(actual, expected, attention_tolerance(type));
      request.recompute = true;
      const AttentionResult recomputed = run_attention(request, sample.dy_SBF);
      EXPECT_TRUE(recomputed.distance_bias.equal(actual.distance_bias));
      request.recompute = false;
      request.score_divisor = 3.0;
      expect_result(run_attention(request, sample.dy_SBF), expected, attention_tolerance(type));
    }
  }
}

// The largest resident size since the last call, in bytes.
int64_t peak_memory() {
  int64_t kilobytes = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") status >> kilobytes;
  }
  std::ofstream("/proc/self/clear_refs") << 5;
  return kilobytes * 1024;
}

// 16,384 tokens: the scores of one head alone would be 1 GiB.
TEST(Attention, MemoryIsLinearInTheSequence) {
  constexpr int64_t length = 16'384, heads = 4, width = 16;
  const at::Tensor x = randn({length, 1, heads, width});
  AttentionRequest segments{.q_SBND = x, .k_SBGD = x, .v_SBGD = x, .scale = 0.25};
  segments.segments.cu_seqlens_q = at::arange(0, length + 1, 128, at::kInt);
  AttentionRequest window{.q_SBND = x, .k_SBGD = x, .v_SBGD = x, .scale = 0.25, .window = 100};
  for (const AttentionRequest& request : {segments, window}) {
    peak_memory();
    const int64_t before = peak_memory();
    run_attention(request, at::ones({length, 1, heads * width}));
    EXPECT_LT(peak_memory() - before, 250 << 20);
  }
}

AttentionRequest with_dropout(const AttentionCase& c, const AttentionSample& sample) {
  AttentionRequest request = request_of(c, sample, 0.3);
  request.dropout = 0.4;
  request.dropout_key = {5, 6, at::arange(11, 11 + c.batch)};
  request.total_heads = c.heads;
  return request;
}

// Each of two ranks holds the first and the last quarter of one half of the queries, and all keys.
TEST(Attention, DropoutFollowsTheRowsOfQueries) {
  const AttentionCase c{.queries = 16, .keys = 16, .batch = 2, .mask = Mask::full};
  const AttentionSample sample = random_sample(c, at::kDouble);
  const AttentionRequest whole = with_dropout(c, sample);
  const at::Tensor expected = attention(whole);
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{0, 1, 2, 3, 12, 13, 14, 15}, {4, 5, 6, 7, 8, 9, 10, 11}}) {
    AttentionRequest part = whole;
    part.query_rows_S = at::tensor(rows);
    part.sequence_length = 16;
    part.q_SBND = sample.q_SBND.index_select(0, part.query_rows_S);
    EXPECT_LT(relative_error(attention(part), expected.index_select(0, part.query_rows_S)), 1e-12);
    part.query_rows_S = at::Tensor();
    EXPECT_GT(relative_error(attention(part), expected.index_select(0, at::tensor(rows))), 1e-2);
  }
}

// Also of cross-attention with more queries than keys, or fewer.
TEST(Attention, NoTwoScoreRowsShareADropoutMask) {
  for (const Mask mask : {Mask::full, Mask::causal}) {
    for (const int64_t keys : {5, 12, 30}) {
      const AttentionCase c{.queries = 12, .keys = keys, .batch = 3, .heads = 4, .groups = 4, .mask = mask};
      if (mask == Mask::causal && keys < c.queries) continue;
      AttentionRequest request = with_dropout(c, random_sample(c, at::kFloat));
      request.dropout_row_ids = std::make_shared<DropoutRowIds>();
      attention(request);
      const at::Tensor ids = request.dropout_row_ids->scores;
      EXPECT_EQ(std::get<0>(at::_unique(ids)).numel(), 12 * 3 * 4) << keys;
      request.query_rows_S = at::arange(12) + (mask == Mask::causal ? keys - 12 : 0);
      request.dropout_row_ids = std::make_shared<DropoutRowIds>();
      attention(request);
      EXPECT_TRUE(at::equal(ids, request.dropout_row_ids->scores)) << "the rows are these";
    }
  }
}

TEST(Attention, QueriesWithoutKeys) {
  const AttentionCase c{
      .queries = 4, .keys = 6, .mask = Mask::full, .cu_seqlens_q = {0, 4, 4}, .cu_seqlens_k = {0, 0, 6}};
  const AttentionSample sample = random_sample(c, at::kFloat);
  for (const AttentionRequest& request : {request_of(c, sample, 1.0), by_math(request_of(c, sample, 1.0))}) {
    const AttentionResult result = run_attention(request, sample.dy_SBF);
    for (const at::Tensor& x : {result.y_SBF, result.dq, result.dk, result.dv})
      EXPECT_EQ(x.abs().max().item<double>(), 0.0);
  }
}

TEST(Attention, RejectsSegmentsThatDoNotFit) {
  AttentionCase c{.queries = 8, .keys = 8, .batch = 2};
  const AttentionSample sample = random_sample(c, at::kFloat);
  for (const std::vector<int32_t>& bounds :
       {std::vector<int32_t>{0, 8, 15}, {0, 9, 16}, {1, 8, 16}, {0, 9, 8, 16}}) {
    c.cu_seqlens_q = bounds;
    EXPECT_DEATH(attention(request_of(c, sample, 1.0)), "segment");
  }
}

}  // namespace
}  // namespace teratron
