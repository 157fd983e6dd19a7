// activation.h, dropout.h, embedding.h and random_fill.h on the GPU
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/kernels/pointwise/embedding.h"
#include "teratron/kernels/pointwise/random_fill.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

TEST_F(Gpu, Activations) {
  for (const Activation kind : activations) {
    for (const auto type : float_types) {
      for (const int64_t width : {16, 98, 4096}) {
        SCOPED_TRACE(fmt::format("kind {} width {}", static_cast<int>(kind), width));
        const at::Tensor x = randn({301, width}, type) * 2,
                         bias = width == 16 ? at::Tensor() : randn({width}, type);
        const at::Tensor y = activation_forward(gpu(x), gpu(bias), kind);
        const at::Tensor expected = activation_forward(f64(x), f64(bias), kind);
        EXPECT_GPU(y, expected, type);
        const at::Tensor dy = randn(expected.sizes(), type);
        EXPECT_GPU(activation_backward(gpu(dy), gpu(x), gpu(bias), kind).dx,
                   activation_backward(f64(dy), f64(x), f64(bias), kind).dx, type);
        const auto summed = [&] {
          return activation_backward(gpu(dy), gpu(x), gpu(bias), kind, {.dbias = GradSink{}});
        };
        const ActivationGradients once = summed(), exact = activation_backward(f64(dy), f64(x), f64(bias),
                                                                               kind, {.dbias = GradSink{}});
        EXPECT_GPU(once.dx, exact.dx, type);
        EXPECT_GPU(once.dbias, exact.dbias, type == at::kDouble ? at::kDouble : at::kFloat);
        EXPECT_TRUE(same_bits(once.dbias, summed().dbias));
      }
    }
  }
}

TEST_F(Gpu, ActivationsAreFiniteForLargeInputs) {
  const at::Tensor x = at::tensor({-1e30f, -1e4f, -100.f, 100.f, 1e4f, 1e18f});
  for (const Activation kind : {Activation::gelu, Activation::gelu_erf, Activation::silu}) {
    EXPECT_TRUE(at::allclose(activation_forward(gpu(x), {}, kind).cpu(), at::relu(x)))
        << static_cast<int>(kind);
  }
}

TEST_F(Gpu, ColumnSum) {
  for (const auto type : float_types) {
    for (const int64_t width : {8, 77, 3072}) {
      const at::Tensor x = randn({1111, width}, type);
      const at::Tensor sum = column_sum(gpu(x));
      EXPECT_GPU(sum, f64(x).sum(0), type == at::kDouble ? at::kDouble : at::kFloat);
      EXPECT_TRUE(same_bits(sum.cpu(), column_sum(gpu(x)).cpu()));
    }
  }
}

TEST_F(Gpu, DropoutMasksMatchCpu) {
  for (const int64_t width : {96, 37}) {
    Dropout how{
        .p = 0.3, .key = {3, 4}, .where = {.rows = {}, .first_row = 9, .columns = 200, .first_column = 5}};
    const at::Tensor x = at::randn({501, width}), bias = at::randn({width}),
                     residual = at::randn({501, width});
    EXPECT_TRUE(at::equal(dropout(gpu(x), how).cpu(), dropout(x, how)));
    how.where.first_column = 8;
    EXPECT_TRUE(at::equal(dropout(gpu(x), how).cpu(), dropout(x, how)));
    EXPECT_LT(relative_error(bias_dropout_add(gpu(x), gpu(bias), gpu(residual), how),
                             bias_dropout_add(x, bias, residual, how)),
              1e-6);
    how.where.rows = at::randint(1'000'000'000'000, {501}, at::kLong);
    const at::Tensor y = dropout(x, how);
    how.where.rows = gpu(how.where.rows);
    EXPECT_TRUE(at::equal(dropout(gpu(x), how).cpu(), y));
    for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble}) {
      how.where.rows = at::Tensor();
      const at::Tensor low = x.to(type);
      EXPECT_GPU(dropout(gpu(low), how), dropout(f64(low), how), type);
    }
  }
}

TEST_F(Gpu, RandomFillMatchesCpu) {
  for (const Distribution distribution : {Distribution::normal, Distribution::uniform}) {
    const RandomFill how{.key = {42, 7}, .distribution = distribution, .offset = 0.25, .scale = 0.02};
    for (const auto type : float_types) {
      at::Tensor host = at::full({77, 131}, 9, type), device = gpu(host);
      const std::vector<int64_t> global{1000, 301};
      const Box box{.start = {55, 3}, .size = {77, 100}};
      random_fill_(host.narrow(1, 20, 100), box, global, how);
      random_fill_(device.narrow(1, 20, 100), box, global, how);
      EXPECT_TRUE(same_bits(device.cpu(), host)) << at::toString(type);
    }
  }
}

// Runs of equal ids that end inside a chunk, start and end at its boundaries, and span several.
TEST_F(Gpu, EmbeddingGrad) {
  for (const auto type : float_types) {
    const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
    for (const int64_t rows : {1, 31, 32, 64, 1000, 5000}) {
      for (const int64_t ids_in_use : {1, 3, 40, 4000}) {
        for (const int64_t width : {8, 37, 1040}) {
          SCOPED_TRACE(fmt::format("{} {} rows of {}, {} ids", at::toString(type), rows, width, ids_in_use));
          const at::Tensor ids = at::randint(ids_in_use, {rows}, at::kLong), dy = randn({rows, width}, type),
                           sum = randn({4000, width}, sums), expected = f64(sum).clone();
          embedding_grad_add_(expected, ids, f64(dy));
          const at::Tensor device = gpu(sum), again = gpu(sum);
          embedding_grad_add_(device, gpu(ids), gpu(dy));
          embedding_grad_add_(again, gpu(ids), gpu(dy));
          EXPECT_LT(relative_error(device, expected), 1e-6);
          EXPECT_TRUE(same_bits(device, again));
        }
      }
    }
  }
}

TEST_F(Gpu, EmbeddingAdd) {
  for (const auto type : float_types) {
    for (const int64_t width : {8, 37, 1040}) {
      for (const int64_t rows_per_id : {1, 3, 64}) {
        SCOPED_TRACE(fmt::format("{} rows of {}, {} for an id", at::toString(type), width, rows_per_id));
        const at::Tensor ids = at::randint(50, {61}, at::kLong), table = randn({50, width}, type),
                         x = randn({61 * rows_per_id, width}, type), device = gpu(x);
        embedding_add_(device, gpu(table), gpu(ids));
        embedding_add_(x, table, ids);
        EXPECT_TRUE(same_bits(device.cpu(), x));
      }
    }
  }
}

// Ids are sorted as 2-byte and 4-byte types.
TEST_F(Gpu, EmbeddingGradOfLargeTables) {
  for (const int64_t count : {int64_t{32'768}, int64_t{65'536}, int64_t{65'537}, int64_t{300'000}}) {
    const at::Tensor ends = at::tensor({int64_t{0}, count / 2 - 1, count / 2, count - 1}),
                     ids = at::cat({ends, at::randint(count, {3000}, at::kLong), ends}),
                     dy = at::randn({ids.size(0), 16}), sum = at::zeros({count, 16}), device = gpu(sum);
    embedding_grad_add_(sum, ids, dy);
    embedding_grad_add_(device, gpu(ids), gpu(dy));
    EXPECT_LT(relative_error(device, sum), 1e-6) << count;
  }
}

TEST_F(Gpu, EmbeddingGradOfWholeChunks) {
  const at::Tensor ids = at::arange(64, at::kLong).repeat_interleave(32), dy = at::randn({2048, 16}),
                   sum = at::zeros({64, 16}), device = gpu(sum);
  embedding_grad_add_(sum, ids, dy);
  embedding_grad_add_(device, gpu(ids), gpu(dy));
  EXPECT_LT(relative_error(device, sum), 1e-6);
}

}  // namespace
}  // namespace teratron
