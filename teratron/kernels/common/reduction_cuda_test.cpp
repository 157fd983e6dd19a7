// reduce.h and grad_sink.h on the GPU
#include "teratron/kernels/common/reduce.h"
#include "teratron/testing/grad_sinks.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

TEST_F(Gpu, Reductions) {
  for (const auto type : float_types) {
    for (const int64_t n : {1, 1001, 5'000'001}) {
      for (const int64_t offset : {0, 1}) {  // 1: unaligned
        at::Tensor all = randn({n + offset}, type);
        all.narrow(0, offset, n / 7).zero_();
        const at::Tensor x = all.narrow(0, offset, n), y = gpu(all).narrow(0, offset, n);
        EXPECT_LT(relative_error(sum_of_squares(y), sum_of_squares(x)), type == at::kDouble ? 1e-13 : 1e-7);
        EXPECT_EQ(sum_of_squares(y).item<double>(), sum_of_squares(y).item<double>());
        EXPECT_EQ(count_zeros(y).item<int64_t>(), count_zeros(x).item<int64_t>());
        at::Tensor flag = at::zeros({1}, at::device(at::kCUDA).dtype(at::kFloat));
        flag_nonfinite_(flag, y);
        EXPECT_EQ(flag.item<float>(), 0);
        const at::Tensor expected = f64(x) * 0.25;
        scale_(y, at::full({1}, 0.25, at::device(at::kCUDA).dtype(at::kFloat)));
        EXPECT_CLOSE(y, expected, type);
        y[n - 1] = std::numeric_limits<double>::quiet_NaN();
        flag_nonfinite_(flag, y);
        EXPECT_EQ(flag.item<float>(), 1);
      }
    }
  }
}

TEST_F(Gpu, SumParts) {
  for (const auto type : float_types) {
    for (const int64_t n : {1, 1001, 3'000'008}) {
      for (const int64_t count : {1, 2, 5}) {
        for (const int64_t offset : {0, 1}) {  // 1: unaligned
          std::vector<at::Tensor> host, device;
          for (int64_t i = 0; i < count; ++i) {
            const at::Tensor x = randn({n + offset}, type);
            host.push_back(x.narrow(0, offset, n));
            device.push_back(gpu(x).narrow(0, offset, n));
          }
          for (const bool average : {false, true}) {
            const at::Tensor expected = at::empty({n}, host[0].options());
            sum_parts_(expected, host, average);
            const at::Tensor actual = average ? device[count / 2] : at::empty({n}, device[0].options());
            sum_parts_(actual, device, average);
            EXPECT_TRUE(same_bits(actual.cpu(), expected)) << type << " " << n << " of " << count;
          }
        }
      }
    }
  }
}

TEST_F(Gpu, GradSinks) {
  expect_grad_sinks(at::kCUDA);
}

}  // namespace
}  // namespace teratron
