#include "teratron/nn/attention/relative_position.h"

#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t buckets_of_direction(const RelativePositions& positions) {
  return positions.bidirectional ? positions.buckets / 2 : positions.buckets;
}

// Rows of the weight, transposed. The gradient is a product with ones and zeros, which sums in a fixed order.
struct BucketLookup : torch::autograd::Function<BucketLookup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& bucket_R,
                            Parameter* parameter) {
    context->save_for_backward({bucket_R});
    save_pointer(context, "parameter", parameter);
    return weight.index_select(0, bucket_R).t().to(main_grad_dtype(weight.scalar_type())).contiguous();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& parameter = *saved_pointer<Parameter>(context, "parameter");
    const at::Tensor bucket_R = context->get_saved_variables()[0];
    const at::Tensor row_K1 = at::arange(parameter.tensor.size(0), bucket_R.options()).unsqueeze(1);
    const at::Tensor is_of_KR = row_K1.eq(bucket_R).to(gradients[0].scalar_type());
    accumulate_grad(parameter, at::matmul(is_of_KR, gradients[0].t()));
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor narrow_bias(const at::Tensor& distance_bias, int64_t queries, int64_t keys) {
  TERATRON_ASSERT(distance_bias.defined(), "relative positions without biases");
  const int64_t most = (distance_bias.size(1) + 1) / 2;
  TERATRON_ASSERT(keys <= most, "biases of {} positions for {} keys", most, keys);
  return distance_bias.narrow(1, most - keys, queries + keys - 1);
}

std::vector<int64_t> distance_buckets(const RelativePositions& positions) {
  const int64_t count = buckets_of_direction(positions), exact = count / 2;
  TERATRON_ASSERT(exact >= 1 && positions.max_distance > exact, "{} buckets up to distance {}",
                  positions.buckets, positions.max_distance);
  const at::Tensor distance = at::arange(positions.max_distance + 1, at::kLong);
  const double range = std::log(static_cast<double>(positions.max_distance) / static_cast<double>(exact));
  const at::Tensor part = at::log(distance.clamp_min(exact).to(at::kFloat) / exact) / range * (count - exact);
  const at::Tensor far = (part.to(at::kLong) + exact).clamp_max(count - 1);
  const at::Tensor bucket = at::where(distance < exact, distance, far).contiguous();
  return {bucket.const_data_ptr<int64_t>(), bucket.const_data_ptr<int64_t>() + bucket.numel()};
}

RelativePositionBias::RelativePositionBias(const Scope& scope, const Options& options,
                                           const TensorParallel& parallel)
    : positions_(options.positions),
      weight_(&scope.parameter("weight", {.shard = Shard::split({options.positions.buckets, options.heads}, 1,
                                                                parallel.group.size, parallel.group.rank),
                                          .init = options.init})) {
  const std::vector<int64_t> buckets = distance_buckets(positions_);
  std::vector<int64_t> bounds;
  for (size_t distance = 1; distance < buckets.size(); ++distance)
    bounds.insert(bounds.end(), buckets[distance] - buckets[distance - 1], static_cast<int64_t>(distance));
  bounds_ = at::tensor(bounds, at::kLong).to(scope.options().device);
}

at::Tensor RelativePositionBias::buckets_of(int64_t length) const {
  const at::Tensor distance = at::arange(1 - length, length, bounds_.options());
  const at::Tensor before = positions_.bidirectional ? distance.abs() : distance.neg().clamp_min(0);
  const at::Tensor bucket = at::searchsorted(bounds_, before, /*out_int32=*/false, /*right=*/true);
  return positions_.bidirectional ? bucket + distance.gt(0).to(at::kLong) * buckets_of_direction(positions_)
                                  : bucket;
}

at::Tensor RelativePositionBias::by_distance(int64_t length) {
  register_use(*weight_);
  return BucketLookup::apply(weight_->tensor, buckets_of(length), weight_);
}

}  // namespace teratron
