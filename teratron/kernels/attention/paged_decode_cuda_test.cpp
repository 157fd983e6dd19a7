#include <random>

#include <ATen/ATen.h>

#include "teratron/kernels/attention/paged_decode.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

struct PagedCase {
  const char* name;
  at::ScalarType type = at::kBFloat16;
  int64_t heads = 8, groups = 2, channels = 128;
  int64_t window = 0, chunk = 0;
  bool alibi = false;
  bool distance_bias = false;
  bool cross = false;  // no new token
  int64_t rotated = 0;
  RopeStyle style = RopeStyle::half;
  std::vector<int64_t> positions = {0, 5, 16, 700, 1499};
  int64_t page_size = 16;
};

constexpr int64_t most_positions = 1600;

// Queries or keys [R, ..., D] at the positions of the rows, rotated by rope().
at::Tensor rotated(const at::Tensor& x, const PagedDecodeOptions& options) {
  if (!options.rotation) return x;
  const auto& [table, style, positions] = *options.rotation;
  return rope(x.flatten(1, -2).unsqueeze(1), table, positions, {.style = style}).view_as(x);
}

// Keys are rotated already.
at::Tensor expected_of(const PagedDecodeInputs& inputs, const PagedDecodeOptions& options) {
  std::vector<at::Tensor> rows;
  for (int64_t r = 0; r < inputs.q_RGQD.size(0); ++r) {
    const auto last = inputs.positions_R[r].item<int64_t>();
    int64_t first = options.window > 0 ? std::max<int64_t>(0, last + 1 - options.window) : 0;
    if (options.chunk > 0) first = std::max(first, last - last % options.chunk);
    const bool cross = !inputs.k_RGD.defined();
    const at::Tensor j =
        at::arange(first, cross ? last + 1 : last, at::TensorOptions().dtype(at::kLong).device(at::kCUDA));
    const int64_t size = options.page_size;
    const at::Tensor pages = inputs.table_RP[r].to(at::kLong).index_select(0, j.div(size, "floor"));
    const at::Tensor slots = pages * size + j.remainder(size);
    const auto keys = [&](const at::Tensor& all, const at::Tensor& own) {
      const at::Tensor cached = all.index_select(0, slots);
      const at::Tensor x = (cross ? cached : at::cat({cached, own[r].unsqueeze(0)})).to(at::kDouble);
      return x.repeat_interleave(inputs.q_RGQD.size(2), 1).transpose(0, 1);  // [N, L, D]
    };
    const at::Tensor q = inputs.q_RGQD[r].flatten(0, 1).to(at::kDouble).unsqueeze(1);
    at::Tensor scores = at::matmul(q, keys(inputs.k_pages, inputs.k_RGD).transpose(1, 2)) * options.scale;
    if (options.alibi_slopes.defined()) {
      const at::Tensor distance = at::arange(first - last, 1, scores.options());
      scores = scores + options.alibi_slopes.to(at::kDouble).view({-1, 1, 1}) * distance;
    }
    if (const at::Tensor& bias = options.distance_bias; bias.defined())
      scores = scores + bias.narrow(1, bias.size(1) / 2 + first - last, last + 1 - first).unsqueeze(1);
    rows.push_back(at::matmul(scores.softmax(-1), keys(inputs.v_pages, inputs.v_RGD)).flatten());
  }
  return at::stack(rows);
}

void expect_equal(const PagedCase& c) {
  const auto rows = static_cast<int64_t>(c.positions.size());
  const int64_t page_size = c.page_size, pages_per_row = most_positions / page_size;
  const auto random = [&](at::IntArrayRef sizes) { return gpu(randn(sizes, c.type)); };
  // Views of a packed projection.
  const at::Tensor qkv = random({rows, c.groups, c.heads / c.groups + 2, c.channels});
  const int64_t slots = (rows * pages_per_row + 1) * page_size;
  const at::Tensor table =
      (at::randperm(rows * pages_per_row, at::kInt) + 1).view({rows, pages_per_row}).to(at::kInt);
  PagedDecodeInputs inputs{.q_RGQD = qkv.narrow(2, 0, c.heads / c.groups),
                           .k_RGD = qkv.select(2, c.heads / c.groups).contiguous(),  // as normalized keys are
                           .v_RGD = qkv.select(2, c.heads / c.groups + 1),
                           .k_pages = random({slots, c.groups, c.channels}),
                           .v_pages = random({slots, c.groups, c.channels}),
                           .table_RP = table.to(at::kCUDA),
                           .positions_R = at::tensor(c.positions, at::kLong).to(at::kCUDA)};
  PagedDecodeOptions options{.scale = 0.3 / std::sqrt(static_cast<double>(c.channels)),
                             .window = c.window,
                             .chunk = c.chunk,
                             .page_size = page_size};
  if (c.alibi) options.alibi_slopes = at::arange(1, c.heads + 1, at::kFloat).div(-20).exp2().to(at::kCUDA);
  if (c.distance_bias)
    options.distance_bias = gpu(randn({c.heads, 2 * pages_per_row * page_size - 1}, at::kFloat));
  if (c.cross) inputs.k_RGD = inputs.v_RGD = at::Tensor();
  const at::Tensor k_before = inputs.k_pages.clone(), v_before = inputs.v_pages.clone();
  if (c.rotated > 0) {
    const at::Tensor angle = at::randn({most_positions, c.rotated / 2}).to(at::kCUDA);
    options.rotation = {{angle.cos(), angle.sin()}, c.style, inputs.positions_R.unsqueeze(1)};
    ASSERT_TRUE(paged_decode_rotates(*options.rotation, c.type));
  }
  PagedDecodeInputs after = inputs;
  after.q_RGQD = rotated(inputs.q_RGQD.contiguous(), options);
  if (!c.cross) after.k_RGD = rotated(inputs.k_RGD, options);
  const at::Tensor expected = expected_of(after, options);
  const at::Tensor actual = paged_decode(inputs, options);
  EXPECT_LT(relative_error(actual, expected), 4 * gpu_tolerance(c.type)) << c.name;
  if (c.cross) {
    EXPECT_TRUE(inputs.k_pages.equal(k_before) && inputs.v_pages.equal(v_before)) << c.name;
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = c.positions[r];
    const int64_t slot = table[r][position / page_size].item<int64_t>() * page_size + position % page_size;
    EXPECT_TRUE(c.rotated > 0 || inputs.k_pages[slot].equal(inputs.k_RGD[r])) << c.name;
    EXPECT_LT(relative_error(inputs.k_pages[slot], after.k_RGD[r]), gpu_tolerance(c.type)) << c.name;
    EXPECT_TRUE(inputs.v_pages[slot].equal(inputs.v_RGD[r])) << c.name;
  }
}

class GpuPagedDecode : public Gpu {};

TEST_F(GpuPagedDecode, MatchesAttentionOverGatheredKeys) {
  const std::vector<PagedCase> cases = {
      {.name = "llama"},
      {.name = "gpt2", .type = at::kHalf, .heads = 12, .groups = 12, .channels = 64},
      {.name = "qwen", .heads = 14, .groups = 2, .channels = 64},
      {.name = "pairs", .type = at::kFloat, .heads = 4, .groups = 2, .channels = 96},
      {.name = "wide", .type = at::kFloat, .heads = 2, .groups = 1, .channels = 256},
      {.name = "wide bf16", .heads = 2, .groups = 2, .channels = 256},
      {.name = "narrow", .type = at::kFloat, .heads = 3, .groups = 1, .channels = 8},
      {.name = "window", .window = 100},
      {.name = "chunks", .chunk = 37},
      {.name = "alibi", .type = at::kHalf, .alibi = true},
      {.name = "rope", .rotated = 128},
      {.name = "t5", .heads = 12, .groups = 12, .channels = 64, .distance_bias = true},
      {.name = "t5 fp32", .type = at::kFloat, .heads = 8, .groups = 8, .channels = 64, .distance_bias = true},
      {.name = "t5 short pages",
       .type = at::kHalf,
       .heads = 6,
       .groups = 6,
       .channels = 32,
       .distance_bias = true,
       .page_size = 4},
      {.name = "cross", .heads = 12, .groups = 12, .channels = 64, .cross = true},
      {.name = "cross fp32", .type = at::kFloat, .heads = 8, .groups = 4, .channels = 64, .cross = true},
      {.name = "part of the channels", .type = at::kHalf, .channels = 96, .rotated = 48},
      {.name = "interleaved", .rotated = 64, .style = RopeStyle::interleaved},
      {.name = "rope fp32", .type = at::kFloat, .heads = 12, .groups = 12, .channels = 64, .rotated = 64},
      {.name = "many rows", .positions = std::vector<int64_t>(150, 333)},
      {.name = "borders of tiles", .positions = {13, 14, 15, 16, 17, 31, 32, 62, 63, 64, 65, 127, 128, 255}},
      {.name = "one group of 20", .type = at::kHalf, .heads = 20, .groups = 1, .channels = 80},
      {.name = "long pages", .page_size = 64},
      {.name = "short pages", .type = at::kHalf, .channels = 64, .page_size = 8},
      {.name = "one row", .positions = {1599}}};
  for (const PagedCase& c : cases) expect_equal(c);
}

TEST_F(GpuPagedDecode, MatchesAttentionOfRandomShapes) {
  std::mt19937 random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 40; ++i) {
    const int64_t groups = draw(1, 6), channels = 8 * draw(1, 32);
    PagedCase c{.name = "random", .heads = groups * draw(1, 12), .groups = groups, .channels = channels};
    c.type = std::array{at::kBFloat16, at::kHalf, at::kFloat}[draw(0, 2)];
    c.window = draw(0, 2) == 0 ? draw(1, 300) : 0;
    c.chunk = draw(0, 3) == 0 ? draw(1, 300) : 0;
    c.alibi = draw(0, 3) == 0;
    c.distance_bias = !c.alibi && draw(0, 3) == 0;
    c.cross = draw(0, 3) == 0;
    c.rotated = !c.alibi && !c.cross && draw(0, 1) == 0 ? std::max<int64_t>(16, channels / 16 * 16) : 0;
    if (c.rotated > channels) c.rotated = 0;
    c.style = draw(0, 1) == 0 ? RopeStyle::half : RopeStyle::interleaved;
    c.page_size = int64_t{4} << draw(0, 4);
    c.positions.resize(draw(1, 12));
    for (int64_t& position : c.positions) position = draw(0, draw(0, 1) == 0 ? 100 : most_positions - 1);
    SCOPED_TRACE(
        fmt::format("case {}: {} heads in {} groups of {}, {}, window {}, pages of {}, {} rotated{}{}", i,
                    c.heads, c.groups, c.channels, toString(c.type), c.window, c.page_size, c.rotated,
                    c.distance_bias ? ", biases" : "", c.cross ? ", cross" : ""));
    expect_equal(c);
  }
}

}  // namespace
}  // namespace teratron
