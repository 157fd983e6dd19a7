// Lookups of ids that all samples share, beside the same ids written out.
#include "teratron/nn/embedding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace teratron {
namespace {

struct Result {
  at::Tensor y, gradient;
};

Result looked_up(const at::Tensor& ids_SB, const at::Tensor& dy_SBH, at::ScalarType type) {
  ParameterSet parameters({.dtype = type, .device = at::kCPU, .seed = 1});
  Embedding embedding(Scope(parameters), {.count = 9, .hidden = 4, .init = Init::normal(1.0)}, {});
  Parameter& weight = *parameters.find("weight");
  const at::Tensor y = embedding.forward(ids_SB);
  y.backward(dy_SBH);
  return {y.detach(), weight.main_grad.clone()};
}

TEST(Embedding, LooksUpOnceWhatSamplesShare) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor shared = at::tensor({3, 0, 8, 3, 1}, at::kLong).unsqueeze(1).expand({5, 6}),
                     dy = at::randn({5, 6, 4}).to(type);
    const Result once = looked_up(shared, dy, type), each = looked_up(shared.contiguous(), dy, type);
    EXPECT_TRUE(once.y.equal(each.y));
    EXPECT_TRUE(at::allclose(once.gradient, each.gradient, 1e-5, 1e-5));
    EXPECT_GT(each.gradient.abs().sum().item<double>(), 0.0);
  }
}

}  // namespace
}  // namespace teratron
