// Lookups of ids shared by all samples, compared with the same ids materialized.
#include "teratron/nn/embedding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace teratron {
namespace {

struct Result {
  at::Tensor y, dx, gradient;
};

Result lookup(const at::Tensor& x_SBH, const at::Tensor& ids_SB, const at::Tensor& dy_SBH) {
  ParameterSet parameters({.dtype = x_SBH.scalar_type(), .device = at::kCPU, .seed = 1});
  Embedding embedding(Scope(parameters), {.count = 9, .hidden = 4, .init = Init::normal(1.0)}, {});
  Parameter& weight = *parameters.find("weight");
  const at::Tensor x = x_SBH.detach().requires_grad_(), y = embedding.add_to_(x.clone(), ids_SB);
  EXPECT_TRUE(y.equal(x_SBH + at::embedding(weight.tensor, ids_SB)));
  y.backward(dy_SBH);
  return {y.detach(), x.grad(), weight.main_grad.clone()};
}

TEST(Embedding, LooksUpSharedIdsOnce) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor shared = at::tensor({3, 0, 8, 3, 1}, at::kLong).unsqueeze(1).expand({5, 6}),
                     x = at::randn({5, 6, 4}).to(type), dy = at::randn({5, 6, 4}).to(type);
    const Result once = lookup(x, shared, dy), each = lookup(x, shared.contiguous(), dy);
    EXPECT_TRUE(once.y.equal(each.y));
    EXPECT_TRUE(once.dx.equal(dy));
    EXPECT_TRUE(at::allclose(once.gradient, each.gradient, 1e-5, 1e-5));
    const at::Tensor expected =
        at::zeros({9, 4}).index_add_(0, shared.reshape(-1), dy.to(at::kFloat).reshape({-1, 4}));
    EXPECT_TRUE(at::allclose(each.gradient, expected, 1e-5, 1e-5));
  }
}

}  // namespace
}  // namespace teratron
