// grouped_gemm_bench: GEMMs of experts, beside torch's grouped GEMM and one dense GEMM of the same FLOPs, in
// turn. Each runs for 0.15 s without pause before it is timed for as long: GPUs slow down under load.
#include <chrono>

#include "bench/gpu_bench.h"

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
};

void report(const std::string& name, const Layer& layer, const Contest& contest) {
  const double ours = milliseconds_under_load(contest.ours), torch = milliseconds_under_load(contest.torch),
               dense = milliseconds_under_load(contest.dense), again = milliseconds_under_load(contest.ours);
  const double best = std::min(ours, again);
  print("{:44} {:8.1f} {:8.1f} {:8.1f} {:8.1f} {:8.0f} {:8.3f} {:8.3f}", name, ours * 1e3, again * 1e3,
        torch * 1e3, dense * 1e3, layer.flops() / best / 1e9, dense / best, torch / best);
}

void bench_layer(const Layer& layer, bool equal) {
  const at::Tensor ends = ends_of(layer, equal), x = device_randn({layer.rows(), layer.in}),
                   dy = device_randn({layer.rows(), layer.out});
  const at::Tensor w = device_randn({layer.experts, layer.out, layer.in}), one = w[0];
  const at::Tensor sum = at::zeros(w.sizes(), w.options().dtype(at::kFloat)), one_sum = sum[0];
  const auto name = [&](const char* what) {
    return fmt::format("{} {}, {} loads", layer.name, what, equal ? "equal" : "drawn");
  };
  report(name("forward"), layer,
         {[&] { grouped_gemm_forward(x, w, ends); }, [&] { at::_grouped_mm(x, w.transpose(1, 2), ends); },
          [&] { linear_forward(x, one, {}); }});
  report(name("dgrad"), layer,
         {[&] { grouped_gemm_input_gradient(dy, w, ends); }, [&] { at::_grouped_mm(dy, w, ends); },
          [&] { linear_input_gradient(dy, one); }});
  report(name("wgrad +="), layer,
         {[&] { grouped_gemm_weight_gradient_(sum, dy, x, ends, true); },
          [&] { const_cast<at::Tensor&>(sum).add_(at::_grouped_mm(dy.t(), x, ends)); },
          [&] { linear_weight_gradient_(one_sum, dy, x, true); }});
  report(name("wgrad ="), layer,
         {[&] { grouped_gemm_weight_gradient_(sum, dy, x, ends, false); },
          [&] { const_cast<at::Tensor&>(sum).copy_(at::_grouped_mm(dy.t(), x, ends)); },
          [&] { linear_weight_gradient_(one_sum, dy, x, false); }});
}

// Limits of gradients: bytes of fp32 sums that are read and written, beside the bytes of a copy.
void report_copy_rate(const Layer& layer) {
  const at::Tensor sum =
      at::zeros({layer.experts, layer.out, layer.in}, at::device(at::kCUDA).dtype(at::kFloat));
  const double add = milliseconds_under_load([&] { const_cast<at::Tensor&>(sum).add_(1.0); }),
               fill = milliseconds_under_load([&] { const_cast<at::Tensor&>(sum).fill_(1.0); });
  print("{:44} read and written {:.1f} us, written {:.1f} us", layer.name, add * 1e3, fill * 1e3);
}

void bench() {
  print("{:44} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}", "us", "ours", "again", "torch", "dense", "TFLOP/s",
        "of dense", "of torch");
  for (const Layer& layer : {Layer{"Qwen3-30B-A3B fc1", 8192, 8, 128, 1536, 2048},
                             Layer{"Qwen3-30B-A3B fc2", 8192, 8, 128, 2048, 768},
                             Layer{"Mixtral-8x7B fc1", 4096, 2, 8, 28672, 4096},
                             Layer{"Mixtral-8x7B fc2", 4096, 2, 8, 4096, 14336}}) {
    for (const bool equal : {true, false}) bench_layer(layer, equal);
    report_copy_rate(layer);
  }
}

}  // namespace
}  // namespace teratron

int main() {
  teratron::bench();
}
