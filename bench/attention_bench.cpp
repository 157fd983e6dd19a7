// attention_bench: milliseconds of attention on the current GPU, forward and forward with backward, in bf16;
// median of 20. Documents have 1,000 tokens; "of N" pads their bounds to N segments.
#include "bench/gpu_bench.h"

#include "teratron/nn/attention/attention.h"

namespace teratron {
namespace {

struct Shape {
  int64_t length, batch, heads, groups, width;
};

double milliseconds(const std::function<void()>& run) {
  return median_milliseconds(20, [] {}, run);
}

/// Segments of `document` tokens in every sample, the last one shorter; at least `count` with empty ones.
Segments documents(const Shape& s, int64_t document, int64_t count) {
  std::vector<int32_t> bounds;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.length; t += document) bounds.push_back(static_cast<int32_t>(b * s.length + t));
  }
  const auto tokens = static_cast<int32_t>(s.batch * s.length);
  bounds.resize(std::max<size_t>(bounds.size(), count) + 1, tokens);
  return {at::tensor(bounds, at::device(at::kCUDA).dtype(at::kInt)), {}};
}

void report(const std::string& name, const Shape& s, AttentionRequest request) {
  // As a projection writes them: a group's queries, its key and its value.
  const at::Tensor qkv = at::randn({s.length, s.batch, s.groups, s.heads / s.groups + 2, s.width},
                                   at::device(at::kCUDA).dtype(at::kBFloat16));
  qkv.requires_grad_();
  const int64_t queries = s.heads / s.groups;
  request.q_SBND = qkv.narrow(3, 0, queries).flatten(2, 3);
  request.k_SBGD = qkv.select(3, queries);
  request.v_SBGD = qkv.select(3, queries + 1);
  request.scale = 1.0 / std::sqrt(static_cast<double>(s.width));
  const at::Tensor dy = at::randn({s.length, s.batch, s.heads * s.width}, qkv.options().requires_grad(false));
  const double forward = milliseconds([&] { attention(request); });
  const double both = milliseconds([&] {
    AttentionRequest leaves = request;
    for (at::Tensor* x : {&leaves.q_SBND, &leaves.k_SBGD, &leaves.v_SBGD}) *x = x->detach().requires_grad_();
    attention(leaves).backward(dy);
  });
  print("{:44} {:13} {:9.3f} {:9.3f}", name, attention_backend(request), forward, both);
}

/// What only our own kernels support beside stored scores.
void report_fused(const std::string& name, const Shape& s, Mask mask) {
  const auto f32 = at::device(at::kCUDA).dtype(at::kFloat);
  const DropoutKey key{1, 2, at::arange(s.batch, f32.dtype(at::kLong))};
  const at::Tensor bias = at::randn({s.heads, 2 * s.length - 1}, f32).requires_grad_();
  report(name, s, {.mask = mask});
  report(name + ", dropout 0.1", s,
         {.mask = mask, .dropout = 0.1, .dropout_key = key, .total_heads = s.heads});
  report(name + ", bias by distance", s, {.mask = mask, .distance_bias = bias});
  report(name + ", both", s,
         {.mask = mask, .distance_bias = bias, .dropout = 0.1, .dropout_key = key, .total_heads = s.heads});
}

void run() {
  print("{:44} {:13} {:>9} {:>9}", "", "backend", "forward", "and back");
  for (const Shape& s : {Shape{8192, 1, 16, 16, 128}, {8192, 2, 16, 16, 128}, {8192, 1, 32, 8, 128}}) {
    const std::string name =
        fmt::format("{} x {}, {}/{} heads of {}", s.batch, s.length, s.heads, s.groups, s.width);
    report(name + ", causal", s, {});
    report(name + ", window 1000", s, {.window = 1000});
    for (const int64_t count : {0, 16, 32, 64, 128, 256, 1024}) {
      const Segments segments = documents(s, 1000, count);
      report(fmt::format("{}, of {}", name, segments.cu_seqlens_q.numel() - 1), s, {.segments = segments});
    }
  }
  const Shape encoder{512, 32, 16, 16, 64};
  report("32 x 512, 16 heads of 64, full", encoder, {.mask = Mask::full});
  report("32 x 512, 16 heads of 64, full, 400 and 112", encoder,
         {.mask = Mask::full, .segments = documents(encoder, 400, 0)});
  report_fused("64 x 512, 16 heads of 64, full", {512, 64, 16, 16, 64}, Mask::full);
  report_fused("16 x 1024, 16 heads of 64, causal", {1024, 16, 16, 16, 64}, Mask::causal);
  report_fused("8 x 2048, 16 heads of 128, causal", {2048, 8, 16, 16, 128}, Mask::causal);
}

}  // namespace
}  // namespace teratron

int main() {
  if (!at::hasCUDA()) {
    teratron::print("attention_bench: no GPU on this machine");
    return 0;
  }
  teratron::run();
}
