// Experts on a GPU, bf16 by grouped GEMMs and fp32 one by one, against fp64 on the CPU.
#include <ATen/CPUGeneratorImpl.h>

#include "teratron/nn/moe/token_dispatcher.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

class GpuExperts : public Gpu {};

struct Results {
  std::map<std::string, at::Tensor> tensors;
};

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

struct Place {
  at::Device device;
  at::ScalarType dtype;
  std::optional<Fp8Options> fp8 = {};
};

// 512 tokens and 16 experts, some of which have few tokens; a fifth of the choices is dropped.
Results run_experts(const Place& place, bool drops) {
  constexpr int64_t tokens = 512, hidden = 256, count = 16, topk = 3;
  ParameterSet set({.dtype = place.dtype, .device = place.device, .fp8 = place.fp8});
  Experts experts(Scope(set, "mlp").with_fp8(),
                  {.experts = count,
                   .hidden = hidden,
                   .ffn_hidden = 192,
                   .fc1_init = Init::normal(0.06),
                   .fc2_init = Init::normal(0.06)},
                  {});
  const auto as_input = [&](const at::Tensor& x) {
    return x.to(at::kBFloat16).to(place.device, place.dtype).requires_grad_(true);
  };
  const at::Tensor x = as_input(normal({tokens, hidden}, 1)),
                   p = as_input(normal({tokens, topk}, 2).sigmoid());
  const at::Tensor slope = at::arange(count, at::kDouble) * 0.2;
  const at::Tensor chosen = top_experts(normal({tokens, count}, 3) + slope, topk).to(place.device);
  const at::Tensor kept = drops ? (normal({tokens, topk}, 4) > -0.84).to(place.device) : at::Tensor();
  const TokenDispatcher dispatcher({.experts = count}, {});
  const at::Tensor y = dispatcher.forward(
      x, {chosen, p}, {kept},
      {[&](const at::Tensor& rows, const at::Tensor& probs, const Permutation& permutation) {
        return experts.forward(rows, probs, permutation);
      }});
  (y * normal({tokens, hidden}, 5).to(place.device, place.dtype)).sum().backward();
  Results results{{{"y", y.detach()}, {"dx", x.grad()}, {"dp", p.grad()}}};
  for (const Parameter& parameter : set.all()) results.tensors[parameter.name] = parameter.main_grad;
  return results;
}

TEST_F(GpuExperts, EqualTheCpu) {
  for (const bool drops : {false, true}) {
    const Results exact = run_experts({at::kCPU, at::kDouble}, drops);
    for (const auto& [dtype, bound] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
      const Results results = run_experts({at::kCUDA, dtype}, drops);
      for (const auto& [name, expected] : exact.tensors) {
        const at::Tensor actual = results.tensors.at(name).to(at::kCPU, at::kDouble);
        EXPECT_LT((actual - expected).norm().item<double>(), bound * expected.norm().item<double>())
            << name << " in " << dtype << (drops ? " with drops" : "");
      }
    }
  }
}

// A largest magnitude that is rounded to another bf16 value has another scale, and then all its tensor rounds
// differently to FP8.
TEST_F(GpuExperts, InFp8EqualTheCpu) {
  for (const bool drops : {false, true}) {
    for (const Fp8Options& fp8 :
         {Fp8Options{}, Fp8Options{.gradients = Fp8Format::e4m3}, Fp8Options{.weight_gradients = false}}) {
      const Results expected = run_experts({at::kCPU, at::kBFloat16, fp8}, drops),
                    results = run_experts({at::kCUDA, at::kBFloat16, fp8}, drops);
      for (const auto& [name, tensor] : expected.tensors)
        EXPECT_LT(relative_error(results.tensors.at(name), tensor), 0.1)
            << name << (drops ? " with drops" : "");
    }
  }
}

TEST_F(GpuExperts, AreReproducible) {
  for (const std::optional<Fp8Options>& fp8 : {std::optional<Fp8Options>(), std::optional(Fp8Options{})}) {
    const Results one = run_experts({at::kCUDA, at::kBFloat16, fp8}, true),
                  other = run_experts({at::kCUDA, at::kBFloat16, fp8}, true);
    for (const auto& [name, tensor] : one.tensors)
      EXPECT_TRUE(at::equal(tensor, other.tensors.at(name))) << name << (fp8 ? " in FP8" : "");
  }
}

}  // namespace
}  // namespace teratron
