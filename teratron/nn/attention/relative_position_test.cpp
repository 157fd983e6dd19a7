#include "teratron/nn/attention/relative_position.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

struct OneBias {
  OneBias(const RelativePositions& positions, int64_t heads, at::ScalarType type)
      : parameters({.dtype = type}),
        bias(Scope(parameters), {.positions = positions, .heads = heads, .init = Init::normal(1.0)}, {}) {}
  Parameter& weight() { return *parameters.find("weight"); }
  ParameterSet parameters;
  RelativePositionBias bias;
};

// What transformers computes.
TEST(RelativePosition, BucketsAreThoseOfT5) {
  for (const nlohmann::json& c : testing::read_json(testing::fixture("models/t5_buckets.json"))) {
    OneBias one(
        {.buckets = c["num_buckets"], .max_distance = c["max_distance"], .bidirectional = c["bidirectional"]},
        1, at::kDouble);
    {
      const at::NoGradGuard no_grad;
      one.weight().tensor.copy_(at::arange(c["num_buckets"].get<int64_t>()).unsqueeze(1));
    }
    const auto expected = c["buckets"].get<std::vector<double>>();
    ASSERT_EQ(expected.size(), 601);
    const at::Tensor found = one.bias.by_distance(301)[0];
    EXPECT_TRUE(found.equal(at::tensor(expected, at::kDouble))) << c["num_buckets"];
  }
}

TEST(RelativePosition, GradientsAreSummedByBucket) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    OneBias one({.buckets = 8, .max_distance = 20, .bidirectional = true}, 3, type);
    const at::Tensor by_distance = one.bias.by_distance(30);
    const at::ScalarType wide = main_grad_dtype(type);
    EXPECT_EQ(by_distance.scalar_type(), wide);
    const at::Tensor gradient = at::randn({3, 59}, wide);
    by_distance.backward(gradient);
    const at::Tensor weight = one.weight().tensor.detach().to(wide).requires_grad_();
    at::Tensor bucket_R = at::empty({59}, at::kLong);
    for (int64_t i = 0; i < 59; ++i) {
      const int64_t distance = i - 29;
      const std::vector<int64_t> buckets =
          distance_buckets({.buckets = 8, .max_distance = 20, .bidirectional = true});
      bucket_R[i] =
          buckets[static_cast<size_t>(std::min<int64_t>(std::abs(distance), 20))] + (distance > 0 ? 4 : 0);
    }
    const at::Tensor expected = weight.index_select(0, bucket_R).t();
    EXPECT_TRUE(by_distance.equal(expected));
    expected.backward(gradient);
    EXPECT_TRUE(at::allclose(one.weight().main_grad, weight.grad(), 1e-5, 1e-6)) << at::toString(type);
  }
}

}  // namespace
}  // namespace teratron
