// cross_entropy.h on the GPU
#include <ATen/cuda/CUDAContextLight.h>

#include "teratron/kernels/loss/cross_entropy.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

TEST_F(Gpu, CrossEntropy) {
  for (const auto type : float_types) {
    for (const auto& [width, columns] :
         {std::pair<int64_t, int64_t>{50304, 50257}, {1001, 1001}, {64, 3}, {64, 0}}) {
      SCOPED_TRACE(fmt::format("{} of {} columns", columns, width));
      const at::Tensor logits = randn({37, width}, type) * 3;
      const at::Tensor targets = at::randint(2 * width, {37}, at::kLong);  // half of them on another rank
      const VocabRange range{.first = width / 2, .columns = columns};
      const auto actual = cross_entropy_statistics(gpu(logits), gpu(targets), range);
      const auto expected = cross_entropy_statistics(f64(logits), targets, range);
      const auto statistics = type == at::kDouble ? at::kDouble : at::kFloat;
      EXPECT_TRUE(at::equal(actual.max.cpu().to(at::kDouble), expected.max));
      EXPECT_TRUE(at::equal(actual.target_logit.cpu().to(at::kDouble), expected.target_logit));
      EXPECT_GPU(actual.sum_exp, expected.sum_exp, statistics);

      const at::Tensor max = at::full({37}, 5, statistics), sum = at::rand({37}).to(statistics) + 1;
      const at::Tensor scale = at::rand({37}).to(statistics);
      scale[5] = 0;
      at::Tensor device = gpu(logits), reference = f64(logits);
      cross_entropy_gradient_(device, {gpu(max), gpu(sum), gpu(targets), gpu(scale)}, range);
      cross_entropy_gradient_(reference, {f64(max), f64(sum), targets, f64(scale)}, range);
      EXPECT_GPU(device, reference, type);
    }
  }
}

TEST_F(Gpu, CrossEntropyWithGradient) {
  for (const auto& [width, columns] : {std::pair<int64_t, int64_t>{50304, 50257},
                                       {64, 64},
                                       {64, 3},
                                       {1001, 1001},      // not vectorizable
                                       {56320, 56320},    // maximum of one block
                                       {56328, 56321},    // two blocks
                                       {131072, 131072},  // four
                                       {256000, 128004},  // eight; some hold only padding
                                       {450560, 450553},
                                       {450568, 450561}}) {  // too long
    SCOPED_TRACE(fmt::format("{} of {} columns", columns, width));
    const at::Tensor logits = randn({37, width}, at::kBFloat16) * 3;
    const at::Tensor targets = at::randint(columns, {37}, at::kLong);
    targets[3] = -1;
    targets[4] = columns;  // padding, or out of range
    targets[5] = columns - 1;
    logits[6].fill_(-3e4);
    logits[6][1] = 3e4;
    const VocabRange range{.first = 0, .columns = columns};
    const at::Tensor exact = f64(logits);
    const at::Tensor losses = cross_entropy_with_gradient_(exact, targets, range);
    const at::Tensor device = gpu(logits);
    const bool hopper = at::cuda::getCurrentDeviceProperties()->major == 9;
    EXPECT_EQ(has_cross_entropy_with_gradient(device), hopper && width % 8 == 0 && width <= 450560);
    EXPECT_GPU(cross_entropy_with_gradient_(device, gpu(targets), range), losses, at::kFloat);
    EXPECT_GPU(device, exact, at::kBFloat16);
    EXPECT_EQ(device.narrow(1, columns, width - columns).abs().sum().item<double>(), 0);
    const at::Tensor again = gpu(logits);
    cross_entropy_with_gradient_(again, gpu(targets), range);
    EXPECT_TRUE(at::equal(again, device));

    const at::Tensor scale = at::full({37}, 0.3, at::kFloat);
    scale[2] = 0;
    scale[7] = -0.15;
    device[2].fill_(NAN);
    const at::Tensor c = cross_entropy_scale_(device, gpu(scale));
    EXPECT_EQ(c.item<float>(), 0.3F);
    EXPECT_TRUE(at::equal(device[8], again[8]));
    EXPECT_GPU(f64(device) * f64(c), exact * f64(scale).unsqueeze(1), at::kBFloat16);
  }
}

TEST_F(Gpu, CrossEntropyPropagatesNaN) {
  const at::Tensor logits = at::zeros({2, 64}, at::device(at::kCUDA).dtype(at::kBFloat16));
  logits[0][40] = NAN;
  const at::Tensor targets = at::zeros({2}, at::device(at::kCUDA).dtype(at::kLong));
  const at::Tensor losses = cross_entropy_with_gradient_(logits, targets, {.first = 0, .columns = 64});
  EXPECT_TRUE(losses[0].isnan().item<bool>() && losses[1].isfinite().item<bool>());
  EXPECT_TRUE(logits[0].isnan().all().item<bool>());
  const at::Tensor c =
      cross_entropy_scale_(logits, at::full({2}, INFINITY, at::device(at::kCUDA).dtype(at::kFloat)));
  EXPECT_TRUE(c.isinf().all().item<bool>());
}

}  // namespace
}  // namespace teratron
