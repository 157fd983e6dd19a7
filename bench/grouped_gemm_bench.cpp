// grouped_gemm_bench [PART...]: GEMMs of experts, those whose name contains every PART, beside torch's
// grouped GEMM and one dense GEMM of the same FLOPs, in turn. Each runs for 0.15 s without pause before it is
// timed for as long: GPUs slow down under load. The limit is the time of the dense GEMM or, if it is longer,
// that of the bytes: operands read once, results written or read and written, at the rate of an addition in
// place.
#include <span>

#include "bench/gpu_bench.h"

#include "teratron/kernels/fp8/grouped_fp8.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/grouped_gemm/grouped_gemm.h"

namespace teratron {
namespace {

using Run = std::function<void()>;

struct Layer {
  const char* name;
  int64_t tokens, topk, experts, out, in;

  int64_t rows() const { return tokens * topk; }
  double flops() const { return 2.0 * static_cast<double>(rows() * out * in); }
  double activation_bytes() const { return 2.0 * static_cast<double>(rows() * (out + in)); }
  double weights() const { return static_cast<double>(experts * out * in); }
};

double milliseconds_under_load(const Run& run) {
  const auto repeat = [&](int times) {
    at::cuda::CUDAEvent start(cudaEventDefault), stop(cudaEventDefault);
    start.record();
    for (int i = 0; i < times; ++i) run();
    stop.record();
    stop.synchronize();
    return static_cast<double>(start.elapsed_time(stop)) / times;
  };
  repeat(3);
  const int times = std::max(3, static_cast<int>(150 / repeat(3)));
  repeat(times);
  return repeat(times);
}

// Equal loads, or those of softmax(normal): few tokens for some experts, several times the mean for others.
at::Tensor ends_of(const Layer& layer, bool equal) {
  const auto options = at::device(at::kCUDA).dtype(at::kLong);
  if (equal) return at::arange(1, layer.experts + 1, options).mul_(layer.rows() / layer.experts).to(at::kInt);
  at::manual_seed(1);
  const at::Tensor chosen = at::multinomial((0.5 * at::randn({layer.experts})).exp(), layer.rows(), true);
  return at::bincount(chosen, {}, layer.experts).cumsum(0).to(at::kInt).to(at::kCUDA);
}

struct Contest {
  Run ours, torch, dense;
  double bytes;
};

void report(const std::string& name, const Layer& layer, const Contest& contest, double bytes_per_ms) {
  const double ours = milliseconds_under_load(contest.ours), torch = milliseconds_under_load(contest.torch),
               dense = milliseconds_under_load(contest.dense), again = milliseconds_under_load(contest.ours);
  const double best = std::min(ours, again), copy = contest.bytes / bytes_per_ms;
  print("{:42} {:8.1f} {:8.1f} {:8.1f} {:8.1f} {:8.1f} {:8.0f} {:8.3f} {:8.3f} {:8.3f}", name, ours * 1e3,
        again * 1e3, torch * 1e3, dense * 1e3, copy * 1e3, layer.flops() / best / 1e9, dense / best,
        std::max(dense, copy) / best, torch / best);
}

// Under load, of an addition in place.
double measure_bytes_per_ms() {
  const at::Tensor sum = at::zeros({int64_t{1} << 29}, at::device(at::kCUDA).dtype(at::kFloat));
  return 8.0 * static_cast<double>(sum.numel()) /
         milliseconds_under_load([&] { const_cast<at::Tensor&>(sum).add_(1.0); });
}

void bench_layer(const Layer& layer, bool equal, std::span<char*> parts) {
  const at::Tensor ends = ends_of(layer, equal), x = device_randn({layer.rows(), layer.in}),
                   dy = device_randn({layer.rows(), layer.out});
  const at::Tensor w = device_randn({layer.experts, layer.out, layer.in}), one = w[0];
  const at::Tensor sum = at::zeros(w.sizes(), w.options().dtype(at::kFloat)), one_sum = sum[0];
  const double rows = layer.activation_bytes(), weights = layer.weights(), rate = measure_bytes_per_ms();
  const auto contest = [&](const char* what, const Contest& contest) {
    const std::string name = fmt::format("{} {}, {} loads", layer.name, what, equal ? "equal" : "drawn");
    if (std::ranges::all_of(parts, [&](const char* part) { return name.find(part) != std::string::npos; }))
      report(name, layer, contest, rate);
  };
  contest("forward",
          {[&] { grouped_gemm_forward(x, w, ends); }, [&] { at::_grouped_mm(x, w.transpose(1, 2), ends); },
           [&] { linear_forward(x, one, {}); }, rows + 2 * weights});
  contest("dgrad", {[&] { grouped_gemm_input_gradient(dy, w, ends); }, [&] { at::_grouped_mm(dy, w, ends); },
                    [&] { linear_input_gradient(dy, one); }, rows + 2 * weights});
  contest("wgrad +=", {[&] { grouped_gemm_weight_gradient_(sum, dy, x, ends, true); },
                       [&] { const_cast<at::Tensor&>(sum).add_(at::_grouped_mm(dy.t(), x, ends)); },
                       [&] { linear_weight_gradient_(one_sum, dy, x, true); }, rows + 8 * weights});
  contest("wgrad =", {[&] { grouped_gemm_weight_gradient_(sum, dy, x, ends, false); },
                      [&] { const_cast<at::Tensor&>(sum).copy_(at::_grouped_mm(dy.t(), x, ends)); },
                      [&] { linear_weight_gradient_(one_sum, dy, x, false); }, rows + 4 * weights});
}

Fp8Matrix cast(const at::Tensor& x, Fp8Format format, const Fp8Groups* groups) {
  return cast_to_fp8(x, {.format = format, .scale = compute_fp8_scale(x, format, groups), .groups = groups});
}

// In FP8, beside the bf16 kernels (in torch's place) and one dense GEMM in FP8.
void bench_fp8_layer(const Layer& layer, bool equal, std::span<char*> parts) {
  const at::Tensor ends = ends_of(layer, equal), x = device_randn({layer.rows(), layer.in}),
                   dy = device_randn({layer.rows(), layer.out});
  const at::Tensor w = device_randn({layer.experts, layer.out, layer.in});
  const at::Tensor sum = at::zeros(w.sizes(), w.options().dtype(at::kFloat)), one_sum = sum[0];
  const Fp8Groups groups = make_fp8_groups(ends, layer.rows());
  const Fp8Matrix x8 = cast(x, Fp8Format::e4m3, &groups), dy8 = cast(dy, Fp8Format::e5m2, &groups),
                  w8 = cast(w.flatten(0, 1), Fp8Format::e4m3, nullptr),
                  one8 = cast(w[0], Fp8Format::e4m3, nullptr);
  const double rows = layer.activation_bytes(), weights = layer.weights(), rate = measure_bytes_per_ms();
  const auto contest = [&](const char* what, const Contest& contest) {
    const std::string name = fmt::format("{} FP8 {}, {} loads", layer.name, what, equal ? "equal" : "drawn");
    if (std::ranges::all_of(parts, [&](const char* part) { return name.find(part) != std::string::npos; }))
      report(name, layer, contest, rate);
  };
  const auto operand = [](const at::Tensor& values, const Fp8Matrix& of) {
    return Fp8Operand{values, of.scale_inv};
  };
  contest(
      "forward",
      {[&] { fp8_grouped_forward(x8, w8, groups, at::kBFloat16); }, [&] { grouped_gemm_forward(x, w, ends); },
       [&] { fp8_matmul({operand(x8.rows, x8), operand(one8.rows, one8), true}, {}, at::kBFloat16); },
       rows + weights});
  contest("dgrad",
          {[&] { fp8_grouped_input_gradient(dy8, w8, groups, at::kBFloat16); },
           [&] { grouped_gemm_input_gradient(dy, w, ends); },
           [&] { fp8_matmul({operand(dy8.rows, dy8), operand(one8.columns, one8)}, {}, at::kBFloat16); },
           rows + weights});
  contest("wgrad +=",
          {[&] { fp8_grouped_weight_gradient_(sum, dy8, x8, groups, true); },
           [&] { grouped_gemm_weight_gradient_(sum, dy, x, ends, true); },
           [&] { fp8_matmul_add_(one_sum, {operand(dy8.columns, dy8), operand(x8.columns, x8)}); },
           rows / 2 + 8 * weights});
  contest("cast", {[&] { cast_to_fp8(x, {.scale = {x8.scale_inv, x8.scale_inv}, .groups = &groups}); },
                   [&] { cast(x, Fp8Format::e4m3, &groups); },
                   [&] { cast_to_fp8(x, {.scale = {x8.scale_inv, x8.scale_inv}}); },
                   4.0 * static_cast<double>(x.numel())});
}

void bench(std::span<char*> parts) {
  print("{:42} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}", "us", "ours", "again", "torch",
        "dense", "bytes", "TFLOP/s", "of dense", "of limit", "of torch");
  for (const Layer& layer : {Layer{"Qwen3-30B-A3B fc1", 8192, 8, 128, 1536, 2048},
                             Layer{"Qwen3-30B-A3B fc2", 8192, 8, 128, 2048, 768},
                             Layer{"Mixtral-8x7B fc1", 4096, 2, 8, 28672, 4096},
                             Layer{"Mixtral-8x7B fc2", 4096, 2, 8, 4096, 14336}}) {
    for (const bool equal : {true, false}) {
      bench_layer(layer, equal, parts);
      bench_fp8_layer(layer, equal, parts);
    }
  }
}

}  // namespace
}  // namespace teratron

int main(int argc, char** argv) {
  teratron::bench({argv + 1, argv + argc});
}
