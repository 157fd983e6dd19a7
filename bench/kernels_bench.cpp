// kernels_bench [GROUP...]: time, GB/s and fraction of the copy bandwidth of every kernel on the current GPU,
// at the shapes of a 1.5B GPT (16384 tokens, hidden 2048); TFLOP/s for GEMMs. Bytes are the minimum that the
// kernel must move. The L2 cache is flushed before each run; median of 50. GROUP: norms, activations,
// linear_activation, merge_qkv, attention, dropout, cross_entropy, flat, fp8; default all.
#include <algorithm>
#include <functional>
#include <span>

#include "bench/gpu_bench.h"

#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/attention/rope.h"
#include "teratron/kernels/attention/softmax.h"
#include "teratron/kernels/common/reduce.h"
#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/kernels/fp8/fp8.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/kernels/norm/norm.h"
#include "teratron/kernels/optimizer/optimizer_step.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/kernels/pointwise/random_fill.h"

namespace teratron {
namespace {

constexpr int64_t tokens = 16384, hidden = 2048, ffn = 8192;
constexpr double row_bytes = 2.0 * tokens * hidden;

void bench_norms(Bench& bench, NormKind kind, int64_t rows, int64_t width) {
  const std::string name = fmt::format("{} norm {}x{}", kind == NormKind::rms ? "rms" : "layer", rows, width);
  const double bytes = 2.0 * static_cast<double>(rows * width);
  const at::Tensor x = device_randn({rows, width}), residual = device_randn({rows, width});
  const NormParameters p{device_randn({width}), kind == NormKind::rms ? at::Tensor() : device_randn({width})};
  const NormOptions options{.kind = kind, .eps = 1e-5, .zero_centered = false};
  bench.report(name, 2 * bytes, [&] { norm_forward(x, {}, p, options); });
  bench.report(name + " + residual", 4 * bytes, [&] { norm_forward(x, {residual, {}}, p, options); });
  const NormOutput out = norm_forward(x, {}, p, options);
  bench.report(name + " backward", 3 * bytes,
               [&] { norm_backward(residual, {}, {out.sum, out.mean, out.rstd}, p, options); });
  bench.report(name + " backward + residual", 4 * bytes,
               [&] { norm_backward(residual, x, {out.sum, out.mean, out.rstd}, p, options); });
  NormParameters summing = p;
  summing.dx_sum_sink.emplace();
  bench.report(name + " backward + residual, summed", 4 * bytes,
               [&] { norm_backward(residual, x, {out.sum, out.mean, out.rstd}, summing, options); });
}

void bench_activations(Bench& bench) {
  const double bytes = 2.0 * tokens * ffn;
  const at::Tensor x = device_randn({tokens, ffn}), dy = device_randn({tokens, ffn}),
                   bias = device_randn({ffn});
  const at::Tensor wide = device_randn({tokens, 2 * ffn});
  bench.report("gelu (bias)", 2 * bytes, [&] { activation_forward(x, bias, Activation::gelu); });
  bench.report("gelu (bias) backward", 3 * bytes,
               [&] { activation_backward(dy, x, bias, Activation::gelu); });
  bench.report("gelu_erf backward", 3 * bytes,
               [&] { activation_backward(dy, x, bias, Activation::gelu_erf); });
  bench.report("squared_relu", 2 * bytes, [&] { activation_forward(x, {}, Activation::squared_relu); });
  bench.report("swiglu", 3 * bytes, [&] { activation_forward(wide, {}, Activation::swiglu); });
  bench.report("swiglu backward", 5 * bytes, [&] { activation_backward(dy, wide, {}, Activation::swiglu); });
  bench.report("column_sum", bytes, [&] { column_sum(x); });
}

std::optional<GradSink> sink_if(bool summed) {
  return summed ? std::optional<GradSink>(GradSink{}) : std::nullopt;
}

struct MergeShape {
  const char* name;
  int64_t length, batch, groups, queries, channels;
  bool rotated, summed;
};

void bench_merge_qkv(Bench& bench, const MergeShape& m) {
  const auto gradient = [&](int64_t heads) {
    return device_randn({m.length, m.batch, m.groups * heads, m.channels});
  };
  const QkvParts parts{gradient(m.queries).unflatten(2, {m.groups, m.queries}), gradient(1), gradient(1)};
  const at::Tensor angle = device_randn({m.length, m.channels / 2}, at::kFloat);
  const at::Tensor positions = at::arange(m.length, at::device(at::kCUDA).dtype(at::kLong)).unsqueeze(1);
  const QkvRotation rotation{
      {angle.cos(), angle.sin()}, RopeStyle::half, positions.expand({m.length, m.batch})};
  const double bytes = 4.0 * static_cast<double>(parts.q.numel() + 2 * parts.k.numel());
  bench.report(fmt::format("merge q, k, v, {}", m.name), bytes,
               [&] { merge_qkv(parts, m.rotated ? &rotation : nullptr, sink_if(m.summed)); });
}

void bench_merges(Bench& bench) {
  bench_merge_qkv(bench, {"1.5B", 4096, 4, 16, 1, 128, true, true});
  bench_merge_qkv(bench, {"GPT2-124M", 1024, 64, 12, 1, 64, false, true});
  bench_merge_qkv(bench, {"Llama-3-8B", 8192, 2, 8, 4, 128, true, false});
  bench_merge_qkv(bench, {"GPT2-124M, no bias", 1024, 64, 12, 1, 64, false, false});
}

void bench_attention(Bench& bench) {
  const at::Tensor qkv = device_randn({4096, 4, 16, 3, 128});
  const at::Tensor angle = device_randn({4096, 64}, at::kFloat);
  const RopeTable table{angle.cos(), angle.sin()};
  const at::Tensor positions =
      at::arange(4096, at::device(at::kCUDA).dtype(at::kLong)).unsqueeze(1).expand({4096, 4});
  for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
    bench.report(style == RopeStyle::half ? "rope q, k in place" : "rope q, k interleaved", 2 * 2 * row_bytes,
                 [&] { rope_(qkv.narrow(3, 0, 2), table, positions, {.style = style}); });
  }
  const at::Tensor scores = device_randn({4, 16, 2048, 2048});
  const double bytes = 2.0 * static_cast<double>(scores.numel());
  const SoftmaxOptions causal{.scale = 0.1, .causal = true};
  const SoftmaxOptions dropped{
      .scale = 0.1, .causal = true, .mask = {}, .dropout = {.p = 0.1, .key = {1, 2}}};
  bench.report("softmax", 2 * bytes, [&] { softmax_forward(scores, {.scale = 0.1}); });
  bench.report("softmax causal", 1.5 * bytes, [&] { softmax_forward(scores, causal); });
  bench.report("softmax causal dropout", 2.5 * bytes, [&] { softmax_forward(scores, dropped); });
  const at::Tensor p = softmax_forward(scores, causal).probabilities;
  bench.report("softmax causal dropout backward", 2 * bytes, [&] { softmax_backward(scores, p, dropped); });
}

void bench_dropout(Bench& bench) {
  const at::Tensor x = device_randn({tokens, hidden}), residual = device_randn({tokens, hidden});
  const at::Tensor bias = device_randn({hidden});
  const Dropout how{.p = 0.1, .key = {1, 2}};
  bench.report("bias_dropout_add", 3 * row_bytes, [&] { bias_dropout_add(x, bias, residual, how); });
  bench.report("bias_dropout_add, p = 0", 3 * row_bytes, [&] { bias_dropout_add(x, bias, residual, {}); });
  bench.report("dropout", 2 * row_bytes, [&] { dropout(x, how); });
}

void bench_cross_entropy(Bench& bench) {
  for (const int64_t vocabulary : {50304, 131072}) {
    const at::Tensor logits = device_randn({8192, vocabulary});
    const at::Tensor targets = at::randint(vocabulary, {8192}, at::device(at::kCUDA).dtype(at::kLong));
    const VocabRange range{.first = 0, .columns = vocabulary - 47};
    const double bytes = 2.0 * static_cast<double>(logits.numel());
    const auto s = cross_entropy_statistics(logits, targets, range);
    const CrossEntropySaved saved{s.max, s.sum_exp, targets, at::ones_like(s.max)};
    bench.report(fmt::format("cross entropy statistics, V {}", vocabulary), bytes,
                 [&] { cross_entropy_statistics(logits, targets, range); });
    bench.report(fmt::format("cross entropy gradient, V {}", vocabulary), 2 * bytes,
                 [&] { cross_entropy_gradient_(logits, saved, range); });
    bench.report(fmt::format("cross entropy with its gradient, V {}", vocabulary), 2 * bytes,
                 [&] { cross_entropy_with_gradient_(logits, targets, range); });
    bench.report(fmt::format("cross entropy scale, V {}", vocabulary),
                 4.0 * static_cast<double>(logits.size(0)),
                 [&] { cross_entropy_scale_(logits, saved.scale); });
    const Fp8Cast cast{.format = Fp8Format::e5m2, .scale = compute_fp8_scale(logits, Fp8Format::e5m2)};
    bench.report(fmt::format("cross entropy gradient in FP8, V {}", vocabulary), 2 * bytes,
                 [&] { cross_entropy_gradient_fp8(logits, saved, range, cast); });
  }
}

void bench_flat(Bench& bench) {
  constexpr int64_t n = 200'000'000;
  const auto zeros = [](at::ScalarType type) { return at::zeros({n}, at::device(at::kCUDA).dtype(type)); };
  AdamShard shard{.weights = {.param = device_randn({n}, at::kFloat), .copy = zeros(at::kHalf)},
                  .grad = device_randn({n}, at::kFloat),
                  .exp_avg = zeros(at::kFloat),
                  .exp_avg_sq = zeros(at::kFloat),
                  .groups = at::zeros({n / 64}, at::device(at::kCUDA).dtype(at::kByte))};
  const auto scalar = [](double value, at::ScalarType type) {
    return at::full({1}, value, at::device(at::kCUDA).dtype(type));
  };
  const StepScalars s{.lr = scalar(1e-3, at::kDouble),
                      .weight_decay = scalar(0.1, at::kDouble),
                      .step = scalar(1, at::kLong),
                      .grad_scale = scalar(1, at::kFloat),
                      .found_inf = scalar(0, at::kFloat)};
  bench.report("adam, f32 gradient, f16 copy", 30.0 * n, [&] { adam_step_(shard, s, {}); });
  shard.weights = {.param = device_randn({n}, at::kBFloat16), .remainder = zeros(at::kShort)};
  bench.report("adam, f32 gradient, bf16 and remainder", 28.0 * n, [&] { adam_step_(shard, s, {}); });
  const at::Tensor gradient = shard.grad, low = gradient.to(at::kBFloat16);
  shard.grad = low;
  bench.report("adam, bf16 gradient, bf16 and remainder", 26.0 * n, [&] { adam_step_(shard, s, {}); });
  bench.report("sum_of_squares f32", 4.0 * n, [&] { sum_of_squares(gradient); });
  bench.report("sum_of_squares bf16", 2.0 * n, [&] { sum_of_squares(low); });
  bench.report("flag_nonfinite f32", 4.0 * n, [&] { flag_nonfinite_(s.found_inf, gradient); });
  bench.report("scale f32", 8.0 * n, [&] { scale_(gradient, s.grad_scale); });
  bench.report("random_fill normal bf16", 2.0 * n, [&] {
    random_fill_(low, Shard::replicated({n}), {.key = {1, 2}, .distribution = Distribution::normal});
  });
}

struct Sizes {
  int64_t m, n, k;
};

// fc1 + activation, and fc2's input gradient + activation backward, fused and as two kernels. m tokens, n
// wide, k in and out.
void bench_linear_activation(Bench& bench, const std::string& name, const Sizes& s, Activation kind) {
  const int64_t wide = parts_of(kind) * s.n;
  const double flops = 2.0 * static_cast<double>(s.m * s.k), forward = flops * static_cast<double>(wide),
               backward = flops * static_cast<double>(s.n);
  const at::Tensor x = device_randn({s.m, s.k}), w1 = device_randn({wide, s.k}) / 32,
                   w2 = device_randn({s.k, s.n}) / 32, z = device_randn({s.m, wide});
  const ActivationOutputs outputs{at::empty({s.m, s.n}, x.options()), at::empty_like(z)};
  bench.report_gemm(name, forward, [&] { linear_activation(outputs, {x, w1}, kind); });
  bench.report_gemm(name + ", two kernels", forward,
                    [&] { activation_forward(linear_forward(x, w1, {}), {}, kind); });
  const std::optional<GradSink> dbias = sink_if(!is_gated(kind));
  bench.report_gemm(name + " backward", backward,
                    [&] { linear_activation_backward({outputs.z, dbias}, {x, w2}, z, kind); });
  bench.report_gemm(name + " backward, two kernels", backward, [&] {
    activation_backward(linear_input_gradient(x, w2), z, {}, kind, {.dbias = dbias});
  });
}

void bench_linear_activations(Bench& bench) {
  bench_linear_activation(bench, "gelu 8192 of 2048", {tokens, ffn, hidden}, Activation::gelu);
  bench_linear_activation(bench, "gelu 3072 of 768", {65536, 3072, 768}, Activation::gelu);
  bench_linear_activation(bench, "swiglu 14336 of 4096", {tokens, 14336, 4096}, Activation::swiglu);
}

Fp8Matrix in_fp8(const at::Tensor& x, Fp8Format format) {
  return cast_to_fp8(x, {.format = format, .scale = compute_fp8_scale(x, format), .columns = false});
}

// y = x W^T and an accumulated weight gradient in FP8, and the GEMM in bf16.
void bench_fp8_products(Bench& bench, const Sizes& s) {
  const double flops = 2.0 * static_cast<double>(s.m * s.n * s.k);
  const at::Tensor x = device_randn({s.m, s.k}), w = device_randn({s.n, s.k});
  const at::Tensor sum = device_randn({s.m, s.n}, at::kFloat);
  const Fp8Matrix a = in_fp8(x, Fp8Format::e4m3), g = in_fp8(x, Fp8Format::e5m2),
                  b = in_fp8(w, Fp8Format::e4m3);
  const Fp8Product forward{{a.rows, a.scale_inv}, {b.rows, b.scale_inv}, true};
  const Fp8Product backward{{g.rows, g.scale_inv}, {b.rows, b.scale_inv}, false};
  const std::string name = fmt::format("{}x{}x{}", s.m, s.n, s.k);
  bench.report_gemm(name + " bf16", flops, [&] { linear_forward(x, w, {}); });
  bench.report_gemm(name + " fp8", flops, [&] { fp8_matmul(forward, {}, at::kBFloat16); });
  bench.report_gemm(name + " fp8 exact", flops, [&] { fp8_matmul(backward, {}, at::kBFloat16); });
  bench.report_gemm(name + " fp8 added", flops, [&] { fp8_matmul_add_(sum, backward); });
}

void bench_fp8_activation(Bench& bench, const std::string& name, Activation kind, int64_t width) {
  const int64_t parts = parts_of(kind);
  const at::Tensor x = device_randn({tokens, parts * width}), dy = device_randn({tokens, width});
  const Fp8Scale scale = compute_fp8_scale(dy, Fp8Format::e4m3);
  const at::Tensor amax = at::zeros_like(scale.scale);
  const Fp8Cast forward{.scale = scale, .amax = amax},
      backward{.format = Fp8Format::e5m2, .scale = scale, .amax = amax};
  const double elements = static_cast<double>(dy.numel()), read = 2.0 * static_cast<double>(parts) * elements;
  bench.report(name + " to fp8", read + 2 * elements, [&] { activation_forward_fp8(x, kind, forward); });
  for (const bool summed : {false, true}) {
    bench.report(name + " backward to fp8" + (summed ? ", summed" : ""), 2 * read + 2 * elements,
                 [&] { activation_backward_fp8(dy, x, kind, backward, sink_if(summed)); });
  }
}

void bench_fp8_activations(Bench& bench) {
  bench_fp8_activation(bench, "swiglu 14336", Activation::swiglu, 14336);
  bench_fp8_activation(bench, "gelu 8192", Activation::gelu, ffn);
}

// Shapes of Llama-3-8B.
void bench_fp8(Bench& bench) {
  for (const int64_t width : {4096, 14336, 28672}) {
    const at::Tensor x = device_randn({tokens, width});
    const double elements = static_cast<double>(x.numel());
    const Fp8Scale scale = compute_fp8_scale(x, Fp8Format::e4m3);
    const at::Tensor amax = at::zeros_like(scale.scale);
    bench.report(fmt::format("fp8 cast and transpose, {}", width), 4 * elements,
                 [&] { cast_to_fp8(x, {.scale = scale, .amax = amax}); });
    bench.report(fmt::format("fp8 cast, {}", width), 3 * elements,
                 [&] { cast_to_fp8(x, {.scale = scale, .amax = amax, .columns = false}); });
    bench.report(fmt::format("fp8 scale, {}", width), 2 * elements,
                 [&] { compute_fp8_scale(x, Fp8Format::e4m3); });
  }
  bench_fp8_activations(bench);
  for (const Sizes& s : {Sizes{tokens, 28672, 4096}, Sizes{tokens, 4096, 14336}, Sizes{tokens, 6144, 4096},
                         Sizes{tokens, 4096, 4096}, Sizes{28672, 4096, tokens}, Sizes{4096, 14336, tokens}}) {
    bench_fp8_products(bench, s);
  }
}

struct Group {
  std::string_view name;
  void (*run)(Bench&);
};

const Group groups[] = {{"norms",
                         [](Bench& bench) {
                           bench_norms(bench, NormKind::layer, tokens, hidden);
                           bench_norms(bench, NormKind::rms, tokens, 4096);
                           bench_norms(bench, NormKind::layer, 65536, 768);
                         }},
                        {"activations", bench_activations},
                        {"linear_activation", bench_linear_activations},
                        {"merge_qkv", bench_merges},
                        {"attention", bench_attention},
                        {"dropout", bench_dropout},
                        {"cross_entropy", bench_cross_entropy},
                        {"flat", bench_flat},
                        {"fp8", bench_fp8}};

void bench_groups(std::span<char*> names) {
  Bench bench;
  for (const Group& group : groups) {
    if (names.empty() || std::ranges::find(names, group.name) != names.end()) group.run(bench);
  }
}

}  // namespace
}  // namespace teratron

int main(int argc, char** argv) {
  const std::span<char*> names(argv + 1, argv + argc);
  for (const std::string_view name : names) {
    if (std::ranges::find(teratron::groups, name, &teratron::Group::name) != std::end(teratron::groups))
      continue;
    teratron::notice("kernels_bench: unknown group '{}'; see the top of bench/kernels_bench.cpp", name);
    return 2;
  }
  if (!at::hasCUDA()) {
    teratron::notice("kernels_bench needs a GPU; this machine has none");
    return 0;
  }
  teratron::bench_groups(names);
}
