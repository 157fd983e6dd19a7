// Helpers of the kernels' tests.
#pragma once

#include <array>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/kernels/pointwise/activation_kind.h"
#include "teratron/testing/tensors/relative_error.h"

namespace teratron {

inline const std::vector<at::ScalarType> float_types{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
inline constexpr std::array activations{Activation::gelu,   Activation::gelu_erf, Activation::squared_relu,
                                        Activation::relu,   Activation::silu,     Activation::quick_gelu,
                                        Activation::swiglu, Activation::geglu};

/// Rounding error of the dtype, with room for a few operations.
inline double tolerance(at::ScalarType type) {
  if (type == at::kDouble) return 1e-12;
  if (type == at::kFloat) return 2e-6;
  return type == at::kHalf ? 8e-4 : 6e-3;
}
/// On the GPU, f32 uses the hardware's exp and reciprocal.
inline double gpu_tolerance(at::ScalarType type) {
  return type == at::kFloat ? 5e-6 : 1.2 * tolerance(type);
}

inline at::Tensor randn(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::randn(sizes, at::kDouble).to(type);
}

inline at::Tensor f64(const at::Tensor& x) {
  return x.defined() ? x.detach().to(at::kDouble) : x;
}

inline at::Tensor gpu(const at::Tensor& x) {
  return x.defined() ? x.to(at::kCUDA) : x;
}

/// f64 leaf that collects a gradient.
inline at::Tensor leaf(const at::Tensor& x) {
  return f64(x).clone().requires_grad_();
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

/// Rows in groups (experts): [begin, begin + rows) of each.
struct TestGroup {
  int64_t begin = 0, rows = 0;
};
inline std::vector<TestGroup> groups_of(const std::vector<int64_t>& counts) {
  std::vector<TestGroup> groups;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    groups.push_back({begin, count});
    begin += count;
  }
  return groups;
}
/// i32 [G].
inline at::Tensor ends_of(const std::vector<int64_t>& counts) {
  return at::tensor(counts, at::kLong).cumsum(0).to(at::kInt);
}

#define EXPECT_CLOSE(actual, expected, type) \
  EXPECT_LT(relative_error(actual, expected), tolerance(type)) << at::toString(type)
#define EXPECT_GPU(actual, expected, type) \
  EXPECT_LT(relative_error(actual, expected), gpu_tolerance(type)) << at::toString(type)

/// GPU kernels against the CPU's f64 arithmetic on the same (rounded) inputs; skipped without a GPU.
class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
    poison();
  }
  /// Leaves NaN in the memory that the next results will be allocated in.
  static void poison() {
    for (const int64_t n : {100, 20'000, 400'000, 8'000'000}) {
      std::vector<at::Tensor> blocks;
      for (int i = 0; i < 6; ++i)
        blocks.push_back(at::full({n}, std::nan(""), at::device(at::kCUDA).dtype(at::kFloat)));
    }
  }
};

}  // namespace teratron
