// rope.h, qkv.h, softmax.h, and what fused_attention.h computes on the host
#include <cmath>

#include "teratron/kernels/attention/key_range.h"
#include "teratron/kernels/attention/softmax.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

/// Rotation by complex multiplication, channel by channel.
at::Tensor rotate_reference(const at::Tensor& x, const RopeTable& t, const at::Tensor& positions,
                            RopeStyle style) {
  const int64_t half = t.cos.size(1);
  const at::Tensor cos = f64(t.cos).index({positions}), sin = f64(t.sin).index({positions});  // [S, B, half]
  at::Tensor out = f64(x).clone();
  const at::Tensor in = f64(x);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = style == RopeStyle::half ? i : 2 * i,
                  b = style == RopeStyle::half ? i + half : 2 * i + 1;
    at::Tensor c = cos.select(-1, i), s = sin.select(-1, i);
    while (c.dim() < x.dim() - 1) c = c.unsqueeze(-1), s = s.unsqueeze(-1);
    out.select(-1, a).copy_(in.select(-1, a) * c - in.select(-1, b) * s);
    out.select(-1, b).copy_(in.select(-1, b) * c + in.select(-1, a) * s);
  }
  return out;
}

RopeTable table(int64_t positions, int64_t half, at::ScalarType type) {
  const at::Tensor angle =
      at::outer(at::arange(positions, at::kDouble),
                at::pow(10000.0, -at::arange(half, at::kDouble) / static_cast<double>(half)));
  const auto to = type == at::kDouble ? at::kDouble : at::kFloat;
  return {angle.cos().to(to), angle.sin().to(to)};
}

TEST(Rope, RotatesViewsOfPackedQkv) {
  for (const auto type : float_types) {
    for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
      // [S, B, groups, queries + key + value, D]; 10 of 14 channels are rotated.
      at::Tensor qkv = randn({6, 2, 2, 5, 14}, type);
      const at::Tensor before = qkv.clone();
      const RopeTable t = table(20, 5, type);
      const at::Tensor positions = at::randint(20, {6, 2}, at::kLong);
      const at::Tensor view = qkv.narrow(3, 0, 4);
      const at::Tensor copied = rope(view, t, positions, {.style = style});
      rope_(view, t, positions, {.style = style});
      EXPECT_CLOSE(view, rotate_reference(before.narrow(3, 0, 4), t, positions, style), type);
      EXPECT_TRUE(same_bits(copied, view));
      EXPECT_TRUE(at::equal(qkv.select(3, 4), before.select(3, 4))) << "the values must stay";
      rope_(view, t, positions, {.style = style, .direction = RopeDirection::inverse});
      EXPECT_LT(relative_error(qkv, before), 2 * tolerance(type));
    }
  }
}

TEST(Rope, SupportsExpandedPositions) {
  const at::Tensor x = randn({4, 3, 2, 8}, at::kDouble);
  const RopeTable t = table(9, 4, at::kDouble);
  const at::Tensor shared = at::tensor({8, 0, 3, 5}, at::kLong).unsqueeze(1).expand({4, 3});
  const at::Tensor y = rope(x, t, shared, {});
  EXPECT_CLOSE(y, rotate_reference(x, t, shared.contiguous(), RopeStyle::half), at::kDouble);
  EXPECT_TRUE(at::equal(y.select(0, 1), x.select(0, 1))) << "position 0 is not rotated";
}

// Against autograd through the forward's views and rotation.
TEST(MergeQkv, MatchesAutograd) {
  constexpr int64_t length = 5, batch = 3, groups = 2, width = 12;
  const at::Tensor positions = at::randint(9, {length, batch}, at::kLong);
  for (const int64_t queries : {1, 4}) {
    for (const int64_t rotated : {0, 4, 12}) {
      SCOPED_TRACE(fmt::format("{} queries, {} rotated channels", queries, rotated));
      const at::Tensor angle = at::randn({9, rotated / 2}, at::kDouble);
      const QkvRotation rotation{{angle.cos(), angle.sin()}, RopeStyle::half, positions};
      const at::Tensor qkv = randn({length, batch, groups, queries + 2, width}, at::kDouble).requires_grad_();
      at::Tensor loss = at::zeros({}, at::kDouble);
      const auto gradient_of = [&](const at::Tensor& part, bool rotates) {
        const at::Tensor dy = randn(part.sizes(), at::kDouble);
        at::Tensor y = part;
        if (rotates && rotated > 0) {
          const at::Tensor a = part.narrow(-1, 0, rotated / 2), b = part.narrow(-1, rotated / 2, rotated / 2);
          std::vector<int64_t> shape(part.dim(), 1);
          shape[0] = length, shape[1] = batch, shape.back() = rotated / 2;
          const at::Tensor at_place = angle.index({positions}).view(shape);
          y = at::cat({a * at_place.cos() - b * at_place.sin(), b * at_place.cos() + a * at_place.sin(),
                       part.narrow(-1, rotated, width - rotated)},
                      -1);
        }
        loss = loss + (y * dy).sum();
        return dy;
      };
      const QkvParts parts{gradient_of(qkv.narrow(3, 0, queries), true),
                           gradient_of(qkv.select(3, queries), true),
                           gradient_of(qkv.select(3, queries + 1), false)};
      loss.backward();
      const MergedQkv merged = merge_qkv(parts, rotated > 0 ? &rotation : nullptr, GradSink{});
      EXPECT_CLOSE(merged.qkv, qkv.grad(), at::kDouble);
      EXPECT_CLOSE(merged.dbias, qkv.grad().flatten(0, 1).sum(0).view(-1), at::kDouble);
      EXPECT_FALSE(merge_qkv(parts, nullptr, std::nullopt).dbias.defined());
      const at::Tensor whole = at::cat({parts.q, parts.k.unsqueeze(3), parts.v.unsqueeze(3)}, 3);
      const MergedQkv in_place = merge_qkv(unpack_qkv(whole), rotated > 0 ? &rotation : nullptr, GradSink{});
      EXPECT_EQ(in_place.qkv.const_data_ptr(), whole.const_data_ptr());
      EXPECT_TRUE(in_place.qkv.equal(merged.qkv));
      EXPECT_TRUE(in_place.dbias.equal(merged.dbias));
    }
  }
}

TEST(MergeQkv, ReturnsPackedGradientsUnchanged) {
  for (const int64_t queries : {1, 4}) {
    const at::Tensor whole = randn({5, 3, 2, queries + 2, 12}, at::kFloat);
    const MergedQkv merged = merge_qkv(unpack_qkv(whole), nullptr, GradSink{});
    EXPECT_EQ(merged.qkv.const_data_ptr(), whole.const_data_ptr());
    EXPECT_TRUE(merged.qkv.equal(whole));
    EXPECT_CLOSE(merged.dbias, f64(whole).flatten(0, 1).sum(0).view(-1), at::kFloat);
  }
}

TEST(LinearRope, RotatesQueriesAndKeys) {
  constexpr int64_t length = 4, batch = 3, groups = 2, per_group = 3, channels = 8;
  const at::Tensor x = randn({length * batch, 5}, at::kDouble), bias = randn({48}, at::kDouble),
                   w = randn({48, 5}, at::kDouble), angle = at::randn({9, 4}, at::kDouble),
                   positions = at::randint(9, {length, batch}, at::kLong);
  const QkvRope qkv_rope{
      {{angle.cos(), angle.sin()}, RopeStyle::interleaved, positions}, per_group, channels};
  const at::Tensor y = linear_rope({x, w, bias}, qkv_rope).view({length, batch, groups, per_group, channels});
  const at::Tensor plain = linear_forward(x, w, bias).view(y.sizes());
  const RopeOptions how{.style = RopeStyle::interleaved};
  EXPECT_CLOSE(y.narrow(3, 0, 2), rope(plain.narrow(3, 0, 2), qkv_rope.rotation.table, positions, how),
               at::kDouble);
  EXPECT_TRUE(y.select(3, 2).equal(plain.select(3, 2)));
  const QkvRope of_nothing{
      {qkv_rope.rotation.table, qkv_rope.rotation.style, positions.narrow(1, 0, 0)}, 3, 8};
  EXPECT_EQ(linear_rope({x.narrow(0, 0, 0), w, bias}, of_nothing).sizes(), at::IntArrayRef({0, 48}));
  const QkvRope too_many{{qkv_rope.rotation.table, qkv_rope.rotation.style, positions}, 4, channels};
  EXPECT_DEATH(apply_rope_(plain.view({12, 48}), too_many), "48 features in groups of 32");
}

// Views of one tensor that are not its parts in order, and packed views without the last rows.
TEST(MergeQkv, CopiesViewsThatAreNotPacked) {
  const at::Tensor whole = randn({5, 3, 2, 3, 12}, at::kFloat);
  const auto& [q, k, v] = unpack_qkv(whole);
  const auto rows = [](const QkvParts& of, int64_t first, int64_t count) {
    return QkvParts{of.q.narrow(0, first, count), of.k.narrow(0, first, count), of.v.narrow(0, first, count)};
  };
  const QkvParts swapped{v.unsqueeze(3), k, q.select(3, 0)}, same{q, k, k}, copied{q.clone(), k, v};
  const QkvParts transposed = unpack_qkv(whole.transpose(0, 1)),
                 every_other = unpack_qkv(whole.narrow(1, 0, 2));
  for (const QkvParts& parts : {swapped, same, copied, transposed, every_other}) {
    EXPECT_FALSE(packed_qkv(parts).defined());
    const at::Tensor expected = at::cat({parts.q, parts.k.unsqueeze(3), parts.v.unsqueeze(3)}, 3);
    EXPECT_TRUE(merge_qkv(parts, nullptr, std::nullopt).qkv.equal(expected));
  }
  EXPECT_TRUE(packed_qkv(rows(unpack_qkv(whole), 1, 2)).equal(whole.narrow(0, 1, 2)));
}

at::Tensor allowed(const SoftmaxOptions& o, const at::Tensor& scores) {
  const int64_t queries = scores.size(2), keys = scores.size(3);
  at::Tensor ok = at::ones(scores.sizes(), at::kBool);
  if (o.causal) ok = ok & at::ones({queries, keys}, at::kBool).tril(keys - queries);
  if (o.mask.defined()) ok = ok & ~o.mask;
  return ok;
}

/// Whether a query sees a key of its sample.
bool sees(const AttentionMask& mask, int batch, std::pair<int, int> query_key) {
  const auto [i, j] = query_key;
  const auto visible = [&](int ahead) {  // of the query's own key
    return !mask.causal || (ahead <= 0 && (mask.window == 0 || ahead > -mask.window));
  };
  if (mask.segments == 0) return visible(j - mask.keys - (i - mask.queries));
  const int t = batch * mask.queries + i, u = batch * mask.keys + j;
  for (int s = 0; s < mask.segments; ++s) {
    const int32_t *const q = mask.cu_seqlens_q + s, *const k = mask.cu_seqlens_k + s;
    if (q[0] <= t && t < q[1]) return k[0] <= u && u < k[1] && visible(u - k[1] - (t - q[1]));
  }
  return false;
}

/// 0 or 1 / (1 - p) of each element, one by one from the definition in score_dropout.h.
at::Tensor kept_scores(at::IntArrayRef sizes, const Dropout& dropout) {
  at::Tensor factor = at::zeros({sizes[0] * sizes[1] * sizes[2], sizes[3]}, at::kDouble);
  const double threshold = std::round(dropout.p * 65536);
  auto factors = factor.accessor<double, 2>();
  for (int64_t row = 0; row < factor.size(0); ++row) {
    const int64_t id = dropout.where.rows.defined() ? dropout.where.rows[row].item<int64_t>() : row;
    for (int64_t j = 0; j < sizes[3]; ++j) {
      const int64_t block = j / 32, n = j / 8 % 4, t = j / 2 % 4, c = j % 2;
      const int64_t draw = (id * ((sizes[3] + 31) / 32) + block) * 4 + t;
      const uint32_t word = philox<7>(dropout.key, static_cast<uint64_t>(draw)).word[n];
      const uint32_t half = c == 0 ? word % 65536 : word / 65536;
      if (half >= threshold) factors[row][j] = 65536 / (65536 - threshold);
    }
  }
  return factor.view(sizes);
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
  if (options.dropout.p > 0) y = p * kept_scores(scores.sizes(), options.dropout);
  EXPECT_CLOSE(out.y, y, type);
  const at::Tensor dy = randn(scores.sizes(), type);
  y.backward(f64(dy));
  // The rounding of P enters the backward twice.
  EXPECT_LT(relative_error(softmax_backward(dy, out.probabilities, options), z.grad()), 2 * tolerance(type));
}

TEST(Softmax, MatchesAutogradWithEveryMask) {
  for (const auto type : float_types) {
    const at::Tensor mask = at::rand({2, 1, 7, 9}) < 0.4;
    mask.select(2, 2).fill_(true);  // a row without visible keys
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
    const at::Tensor rows = at::randint(int64_t{1} << 40, {2 * 3 * 7}, at::kLong);
    check_softmax(type, {.scale = 1, .dropout = {.p = 0.3, .key = {1, 2}, .where = {.rows = rows}}}, 7, 83);
    check_softmax(type, {.scale = 1, .dropout = {.p = 1.0, .key = {1, 2}}}, 7, 40);
  }
}

// Each element is dropped as often as asked, independently of its neighbors in a draw.
TEST(Softmax, DropsAtTheRate) {
  for (const double p : {0.1, 0.5, 1e-3}) {
    const at::Tensor kept = kept_scores({4, 8, 64, 512}, {.p = p, .key = {3, 4}}).gt(0).to(at::kDouble);
    const double n = static_cast<double>(kept.numel()), rate = std::round(p * 65536) / 65536;
    EXPECT_NEAR(1 - kept.mean().item<double>(), rate, 5 * std::sqrt(rate * (1 - rate) / n));
    for (const int64_t shift : {1, 2, 8, 32}) {
      const at::Tensor both = (1 - kept.narrow(3, 0, 512 - shift)) * (1 - kept.narrow(3, shift, 512 - shift));
      EXPECT_NEAR(both.mean().item<double>(), rate * rate, 5 * rate / std::sqrt(n)) << shift;
    }
  }
}

// The closed form of each query's keys against the definition by segments.
TEST(KeyRange, IsWhatSegmentsDefine) {
  const auto check = [](const AttentionMask& mask, int batch) {
    for (int b = 0; b < batch; ++b) {
      KeyRange before{0, 0};
      for (int i = 0; i < mask.queries; ++i) {
        const KeyRange range = key_range(mask, b, i);
        EXPECT_LE(range.begin, range.end);
        EXPECT_GE(range.begin, before.begin) << "begins grow";
        EXPECT_GE(range.end, before.end) << "ends grow";
        before = range;
        for (int j = 0; j < mask.keys; ++j) {
          const bool seen = range.begin <= j && j < range.end;
          EXPECT_EQ(seen, sees(mask, b, {i, j})) << "sample " << b << " query " << i << " key " << j;
        }
      }
    }
  };
  const std::vector<int32_t> none, q{0, 20, 24, 30, 30, 48, 48}, k{0, 33, 40, 40, 60, 80, 80};
  for (const bool causal : {false, true}) {
    for (const int window : {0, 5}) {
      if (window > 0 && !causal) continue;
      for (const auto& [queries, keys] : {std::pair{12, 12}, {7, 12}, {12, 7}}) {
        check({queries, keys, causal, window, nullptr, nullptr, 0}, 1);
      }
      check({24, 40, causal, window, q.data(), k.data(), 6}, 2);
      check({24, 24, causal, window, q.data(), q.data(), 6}, 2);
    }
  }
}

}  // namespace
}  // namespace teratron
