// reduce.h, grad_sink.h and at::parallel_for
#include "teratron/kernels/common/reduce.h"
#include "teratron/testing/grad_sinks.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

TEST(Reduce, SumsCountsAndScales) {
  for (const auto type : float_types) {
    for (const int64_t n : {0, 1, 7, 100003}) {
      at::Tensor x = randn({n}, type);
      if (n > 6) x.narrow(0, 2, 3).zero_();
      EXPECT_EQ(sum_of_squares(x).scalar_type(), at::kDouble);
      EXPECT_LT(relative_error(sum_of_squares(x), f64(x).pow(2).sum()), 1e-12);
      EXPECT_EQ(count_zeros(x).item<int64_t>(), (x == 0).sum().item<int64_t>());
      const at::Tensor expected = f64(x) * 0.3;
      scale_(x, at::tensor({0.3}, at::kDouble));
      EXPECT_CLOSE(x, expected, type);
    }
  }
}

TEST(Reduce, FlagsNonfiniteValuesAndKeepsTheFlag) {
  for (const auto type : float_types) {
    for (const double bad :
         {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN()}) {
      at::Tensor x = randn({20011}, type);
      at::Tensor flag = at::zeros({1});
      flag_nonfinite_(flag, x);
      EXPECT_EQ(flag.item<float>(), 0);
      x[20010] = bad;
      flag_nonfinite_(flag, x);
      EXPECT_EQ(flag.item<float>(), 1);
      EXPECT_FALSE(std::isfinite(sum_of_squares(x).item<double>()));
      flag_nonfinite_(flag, randn({5}, type));
      EXPECT_EQ(flag.item<float>(), 1);
    }
  }
}

TEST(Reduce, IsIndependentOfThreadCount) {
  const at::Tensor x = at::randn({300000});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = sum_of_squares(x);
  at::set_num_threads(3);
  const at::Tensor three = sum_of_squares(x);
  at::set_num_threads(threads);
  EXPECT_EQ(one.item<double>(), three.item<double>());
}

#ifndef __SANITIZE_THREAD__
// Without OpenMP at::parallel_for compiles to a serial loop.
TEST(Threads, ParallelForUsesThem) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  std::array<int, 2> ran_on{};
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ran_on[i] = at::get_thread_num();
  });
  at::set_num_threads(threads);
  EXPECT_EQ(ran_on, (std::array{0, 1}));
}
#endif

TEST(SumParts, AddsInOrderAndRoundsOnce) {
  for (const auto type : float_types) {
    std::vector<at::Tensor> parts;
    at::Tensor sum = at::zeros({1001}, at::kDouble);
    for (int64_t i = 0; i < 5; ++i) sum += f64(parts.emplace_back(randn({1001}, type)));
    const at::Tensor out = at::empty({1001}, parts[0].options());
    sum_parts_(out, parts, false);
    EXPECT_CLOSE(out, sum, type);
    sum_parts_(parts[3], parts, true);
    EXPECT_CLOSE(parts[3], sum / 5, type);
  }
}

TEST(GradSink, IsWrittenOrAccumulatedInPlace) {
  expect_grad_sinks(at::kCPU);
}

}  // namespace
}  // namespace teratron
