// recurrence_bench [PART...]: the cores of Mamba-2 and gated delta nets (between a layer's projections),
// forward and backward, of those whose name contains every PART. Bytes: inputs and outputs once, in the
// forward pass and in the backward pass; the rate is of a copy.
#include "bench/gpu_bench.h"

#include "teratron/kernels/delta/delta_core.h"
#include "teratron/kernels/mamba/mamba_core.h"

namespace teratron {
namespace {

struct Sequences {
  int64_t tokens, batch;
};

void bench_mamba(Bench& bench, const std::string& name, const MambaOptions& options, const Sequences& of) {
  const auto wide = [](at::IntArrayRef sizes) { return device_randn(sizes, at::kFloat); };
  const MambaInput input{.zxbcdt_SB = device_randn({of.tokens, of.batch, options.width()})};
  const MambaWeights weights{.conv_weight = device_randn({options.channels(), 1, 4}),
                             .conv_bias = device_randn({options.channels()}),
                             .dt_bias = wide({options.heads}) - 4.0,
                             .A_log = wide({options.heads}),
                             .D = wide({options.heads}),
                             .norm_weight = device_randn({options.inner()})};
  const at::Tensor dy = device_randn({of.tokens, of.batch, options.inner()});
  const double bytes = 2.0 * static_cast<double>(of.tokens * of.batch);
  const auto forward_bytes = bytes * static_cast<double>(options.width() + options.inner());
  bench.report(name + " forward", forward_bytes, [&] { mamba_forward(input, weights, options); });
  bench.report(name + " backward", forward_bytes + bytes * static_cast<double>(options.width()),
               [&] { mamba_backward(dy, {}, input, weights, options); });
}

void bench_delta(Bench& bench, const std::string& name, const DeltaOptions& options, const Sequences& of) {
  const DeltaInput input{.qkvzba_SB = device_randn({of.tokens, of.batch, options.width()})};
  const DeltaWeights weights{.conv_weight = device_randn({options.channels(), 1, 4}),
                             .dt_bias = device_randn({options.value_heads}),
                             .A_log = device_randn({options.value_heads}),
                             .norm_weight = device_randn({options.value_dim})};
  const at::Tensor dy = device_randn({of.tokens, of.batch, options.values()});
  const double bytes = 2.0 * static_cast<double>(of.tokens * of.batch);
  const auto forward_bytes = bytes * static_cast<double>(options.width() + options.values());
  bench.report(name + " forward", forward_bytes, [&] { delta_forward(input, weights, options); });
  bench.report(name + " backward", forward_bytes + bytes * static_cast<double>(options.width()),
               [&] { delta_backward(dy, {}, input, weights, options); });
}

}  // namespace

int run(const std::vector<std::string>& parts) {
  Bench bench;
  const auto wanted = [&](const std::string& name) {
    return std::ranges::all_of(parts, [&](const auto& part) { return name.find(part) != std::string::npos; });
  };
  const auto mamba = [&](const std::string& name, const MambaOptions& options, const Sequences& of) {
    if (wanted(name)) bench_mamba(bench, name, options, of);
  };
  mamba("mamba2-1.4b 4 x 4096", {.heads = 64, .head_dim = 64, .groups = 1, .state = 128}, {4096, 4});
  mamba("mamba2-1.4b G 8 4 x 4096", {.heads = 64, .head_dim = 64, .groups = 8, .state = 128}, {4096, 4});
  mamba("mamba2-1.4b 1 x 16384", {.heads = 64, .head_dim = 64, .groups = 1, .state = 128}, {16384, 1});
  mamba("nemotron-nano-4b 4 x 4096", {.heads = 96, .head_dim = 80, .groups = 8, .state = 128}, {4096, 4});
  if (const std::string name = "qwen3-next delta 4 x 4096"; wanted(name))
    bench_delta(bench, name, {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128},
                {4096, 4});
  return 0;
}

}  // namespace teratron

int main(int argc, char** argv) {
  return teratron::run({argv + 1, argv + argc});
}
