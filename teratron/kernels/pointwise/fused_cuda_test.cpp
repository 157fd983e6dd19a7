// The GPU's kernels that do the work of several, against the CPU's f64 arithmetic on the same (rounded) inputs.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>

#include "teratron/kernels/attention/qkv.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/gemm/gemm_activation_cuda.h"
#include "teratron/kernels/gemm/gemm_cuda.h"
#include "teratron/kernels/pointwise/embedding.h"
#include "teratron/testing/grad_sinks.h"
#include "teratron/testing/kernels.h"
#include "teratron/testing/linear_activation.h"
#include "teratron/testing/linear_products.h"

namespace teratron {
namespace {

class GpuFused : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  }
};

at::Tensor gpu(const at::Tensor& x) {
  return x.defined() ? x.to(at::kCUDA) : x;
}

double allowed(at::ScalarType type) {
  return type == at::kFloat ? 5e-6 : 1.2 * tolerance(type);
}

TEST_F(GpuFused, LinearAdd) {
  for (const auto type : float_types) {
    for (const auto& [rows, in, out] : {std::array<int64_t, 3>{8, 16, 24}, {1000, 520, 264}, {33, 7, 5}}) {
      SCOPED_TRACE(fmt::format("{} [{}, {}] to {}", at::toString(type), rows, in, out));
      const at::Tensor x = randn({rows, in}, type), w = randn({out, in}, type),
                       residual = randn({rows, out}, type);
      for (const at::Tensor& bias : {at::Tensor(), randn({out}, type)}) {
        const at::Tensor y = linear_add(gpu(x), gpu(w), gpu(bias), gpu(residual));
        EXPECT_LT(relative_error(y, linear_add(f64(x), f64(w), f64(bias), f64(residual))), allowed(type));
      }
    }
  }
}

// Odd sizes, rows with gaps, and products large enough for each kind of tile.
TEST_F(GpuFused, LinearProductsAreTheSums) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_linear_products({at::kCUDA, type, 7, 5, 3, 2});
    check_linear_products({at::kCUDA, type, 40, 24, 16, 8});
    check_linear_products({at::kCUDA, type, 40, 24, 16});
    check_linear_products({at::kCUDA, type, 33, 1027, 129});
    check_strange_factors(at::device(at::kCUDA).dtype(type));
  }
  constexpr std::array<std::array<int64_t, 3>, 4> shapes{
      {{4096, 768, 2304}, {8192, 2048, 2048}, {2048, 1024, 12672}, {4104, 4096, 2056}}};
  for (const auto& [tokens, inputs, outputs] : shapes) {
    check_linear_products({at::kCUDA, at::kBFloat16, tokens, inputs, outputs});
  }
}

// cuBLASLt would read past their ends.
TEST_F(GpuFused, ProductsOfFactorsThatDoNotFitAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto random = [](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}, at::device(at::kCUDA).dtype(at::kBFloat16));
  };
  EXPECT_DEATH(linear_forward(random(24, 16), random(8, 17), {}), "product of");
  EXPECT_DEATH(linear_forward(random(24, 16), random(8, 16), random(1, 9)), "bias has 9 elements, not 8");
}

bool on_hopper() {
  return at::cuda::getCurrentDeviceProperties()->major == 9;
}

// cuBLASLt's first proposals for the large ones, 192 x 192 and 128 x 320, lose to others on Hopper.
TEST_F(GpuFused, LargeProductsTakeTheKernelThatIsBestUnderLoad) {
  const auto place = [](int64_t m, int64_t n, int64_t k) {
    const auto options = at::device(at::kCUDA).dtype(at::kBFloat16);
    const at::Tensor a = at::empty({m, k}, options), b = at::empty({n, k}, options),
                     out = at::empty({m, n}, options);
    return cuda::gemm_choice({.m = m,
                              .n = n,
                              .k = k,
                              .a = {.data = a.data_ptr(), .type = Dtype::bf16, .stride = k},
                              .b = {.data = b.data_ptr(), .type = Dtype::bf16, .stride = k},
                              .addend = nullptr,
                              .bias = nullptr,
                              .out = out.data_ptr(),
                              .out_type = Dtype::bf16,
                              .workspace = nullptr});
  };
  EXPECT_EQ(place(16384, 8192, 2048) > 0, on_hopper());
  EXPECT_EQ(place(16384, 4096, 4096) > 0, on_hopper());
  EXPECT_EQ(place(64, 64, 64), 0U);
}

// Tiles that are cut at every side, an odd number of them one below the other, stages that go round or are not filled, one
// column of tiles; a k for narrow tiles and one for wide ones.
TEST_F(GpuFused, LinearActivationInOneKernel) {
  constexpr std::array<std::array<int64_t, 3>, 6> shapes{{{2200, 2056, 72},
                                                          {17000, 264, 200},
                                                          {4352, 1544, 8},
                                                          {3000, 2048, 512},
                                                          {34000, 248, 64},
                                                          {2200, 2056, 1032}}};
  for (const auto& [rows, width, k] : shapes) {
    for (const Activation activation : activations) {
      EXPECT_EQ(cuda::has_gemm_activation({.rows = rows, .width = width, .k = k, .activation = activation}),
                on_hopper());
      check_every_element({at::kCUDA, at::kBFloat16, activation, rows, width, k});
    }
  }
  check_linear_activation({at::kCUDA, at::kBFloat16, Activation::gelu, 2200, 2056, 72});
  check_linear_activation({at::kCUDA, at::kBFloat16, Activation::gelu, 2200, 2056, 1032});
  check_linear_activation({at::kCUDA, at::kBFloat16, Activation::swiglu, 17000, 264, 200});
}

// Other types, fewer tiles than multiprocessors, widths in no packs.
TEST_F(GpuFused, LinearActivationInTwoKernels) {
  EXPECT_FALSE(cuda::has_gemm_activation({.rows = 40, .width = 16, .k = 24, .activation = Activation::gelu}));
  for (const auto type : float_types) {
    for (const Activation activation : activations) {
      check_linear_activation({at::kCUDA, type, activation, 40, 16, 24});
    }
  }
  check_linear_activation({at::kCUDA, at::kHalf, Activation::gelu, 2200, 2056, 72});
  check_linear_activation({at::kCUDA, at::kBFloat16, Activation::gelu, 2200, 2055, 71});
}

// An operand at an address that is no multiple of 16: product and activation one after the other.
TEST_F(GpuFused, LinearActivationOfUnalignedOperands) {
  const auto random = [](at::IntArrayRef sizes) { return gpu(randn(sizes, at::kBFloat16)); };
  const auto shift = [](const at::Tensor& x) {
    return at::cat({x.new_empty({4}), x.flatten()}).slice(0, 4).view(x.sizes());
  };
  const at::Tensor x = random({4352, 64}), w = random({2048, 64}) / 8, w2 = w.t().contiguous();
  const Activated there = linear_activation(x, w, {}, Activation::gelu, true);
  EXPECT_LT(relative_error(linear_activation(shift(x), w, {}, Activation::gelu, false).y, there.y),
            allowed(at::kBFloat16));
  const auto backward = [&](const at::Tensor& dy, const at::Tensor& z) {
    return linear_activation_backward(dy, w2, z, Activation::gelu, std::nullopt).dx;
  };
  const at::Tensor dz = backward(x, there.z);
  EXPECT_LT(relative_error(backward(shift(x), there.z), dz), allowed(at::kBFloat16));
  EXPECT_LT(relative_error(backward(x, shift(there.z)), dz), allowed(at::kBFloat16));
}

// Runs of equal ids that end within a chunk, begin and end at its borders, and span several.
TEST_F(GpuFused, AddRows) {
  for (const auto type : float_types) {
    const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
    for (const int64_t rows : {1, 31, 32, 64, 1000, 5000}) {
      for (const int64_t ids_in_use : {1, 3, 40, 4000}) {
        for (const int64_t width : {8, 37, 1040}) {
          SCOPED_TRACE(fmt::format("{} {} rows of {}, {} ids", at::toString(type), rows, width, ids_in_use));
          const at::Tensor ids = at::randint(ids_in_use, {rows}, at::kLong), dy = randn({rows, width}, type),
                           sum = randn({4000, width}, sums), expected = f64(sum).clone();
          add_rows_(expected, ids, f64(dy));
          const at::Tensor device = gpu(sum), again = gpu(sum);
          add_rows_(device, gpu(ids), gpu(dy));
          add_rows_(again, gpu(ids), gpu(dy));
          EXPECT_LT(relative_error(device, expected), 1e-6);
          EXPECT_TRUE(same_bits(device, again));
        }
      }
    }
  }
}

TEST_F(GpuFused, AddLookedUp) {
  for (const auto type : float_types) {
    for (const int64_t width : {8, 37, 1040}) {
      for (const int64_t rows_of_id : {1, 3, 64}) {
        SCOPED_TRACE(fmt::format("{} rows of {}, {} for an id", at::toString(type), width, rows_of_id));
        const at::Tensor ids = at::randint(50, {61}, at::kLong), table = randn({50, width}, type),
                         x = randn({61 * rows_of_id, width}, type), device = gpu(x);
        add_looked_up_(device, gpu(table), gpu(ids));
        add_looked_up_(x, table, ids);
        EXPECT_TRUE(same_bits(device.cpu(), x));
      }
    }
  }
}

// Ids are sorted in types of two and four bytes.
TEST_F(GpuFused, AddRowsOfLargeTables) {
  for (const int64_t count : {int64_t{32'768}, int64_t{65'536}, int64_t{65'537}, int64_t{300'000}}) {
    const at::Tensor ends = at::tensor({int64_t{0}, count / 2 - 1, count / 2, count - 1}),
                     ids = at::cat({ends, at::randint(count, {3000}, at::kLong), ends}),
                     dy = at::randn({ids.size(0), 16}), sum = at::zeros({count, 16}), device = gpu(sum);
    add_rows_(sum, ids, dy);
    add_rows_(device, gpu(ids), gpu(dy));
    EXPECT_LT(relative_error(device, sum), 1e-6) << count;
  }
}

TEST_F(GpuFused, AddRowsInBlocksOfAChunk) {
  const at::Tensor ids = at::arange(64, at::kLong).repeat_interleave(32), dy = at::randn({2048, 16}),
                   sum = at::zeros({64, 16}), device = gpu(sum);
  add_rows_(sum, ids, dy);
  add_rows_(device, gpu(ids), gpu(dy));
  EXPECT_LT(relative_error(device, sum), 1e-6);
}

struct MergeCase {
  at::ScalarType type;
  int64_t queries, width, rotated;
  bool strided;
  int64_t length = 37;
};

void check_merge(const MergeCase& c) {
  constexpr int64_t batch = 5, groups = 3, positions = 50;
  const int64_t length = c.length;
  SCOPED_TRACE(fmt::format("{} {} queries, {} of {} channels rotated, strided {}", at::toString(c.type),
                           c.queries, c.rotated, c.width, c.strided));
  // As attention gives them: batch first, heads before the sequence, or in order.
  const auto gradient = [&](int64_t heads) {
    return c.strided ? randn({batch, groups * heads, length, c.width}, c.type).permute({2, 0, 1, 3})
                     : randn({length, batch, groups * heads, c.width}, c.type);
  };
  const QkvParts parts{gradient(c.queries).unflatten(2, {groups, c.queries}), gradient(1), gradient(1)};
  const at::Tensor angle = at::randn({positions, c.rotated / 2});
  const auto statistics = c.type == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor at = at::randint(positions, {length, batch}, at::kLong);
  const RopeTable table{angle.cos().to(statistics), angle.sin().to(statistics)};
  const QkvRotation host{{f64(table.cos), f64(table.sin)}, RopeStyle::half, at};
  const QkvRotation device{{gpu(table.cos), gpu(table.sin)}, RopeStyle::half, gpu(at)};
  const bool turns = c.rotated > 0;
  const MergedQkv expected =
      merge_qkv({f64(parts.q), f64(parts.k), f64(parts.v)}, turns ? &host : nullptr, SumInto{});
  // .to() keeps strides.
  const QkvParts there{gpu(parts.q), gpu(parts.k), gpu(parts.v)};
  const MergedQkv merged = merge_qkv(there, turns ? &device : nullptr, SumInto{});
  EXPECT_LT(relative_error(merged.qkv, expected.qkv), allowed(c.type));
  EXPECT_LT(relative_error(merged.column_sum, expected.column_sum),
            turns ? allowed(c.type) : allowed(statistics));
  const MergedQkv again = merge_qkv(there, turns ? &device : nullptr, SumInto{});
  EXPECT_TRUE(same_bits(merged.column_sum, again.column_sum));
  const MergedQkv alone = merge_qkv(there, turns ? &device : nullptr, std::nullopt);
  EXPECT_TRUE(same_bits(merged.qkv, alone.qkv));
  EXPECT_FALSE(alone.column_sum.defined());
  for (const WantedSum& sum : {WantedSum(SumInto{}), WantedSum()}) {
    const at::Tensor whole = at::cat({there.q, there.k.unsqueeze(3), there.v.unsqueeze(3)}, 3);
    const MergedQkv in_place = merge_qkv(parts_of(whole), turns ? &device : nullptr, sum);
    EXPECT_EQ(in_place.qkv.const_data_ptr(), whole.const_data_ptr());
    EXPECT_TRUE(same_bits(in_place.qkv, merged.qkv));
    if (sum) {
      EXPECT_LT(relative_error(in_place.column_sum, f64(merged.column_sum)), turns ? 1e-6 : allowed(c.type));
    }
  }
}

TEST_F(GpuFused, SumsGoWhereTheyAreWanted) {
  expect_sums_where_wanted(at::kCUDA);
}

TEST_F(GpuFused, MergeQkv) {
  for (const auto type : float_types) {
    for (const bool strided : {false, true}) {
      check_merge({type, 1, 64, 0, strided});
      check_merge({type, 1, 64, 64, strided});
      check_merge({type, 4, 128, 128, strided});
      check_merge({type, 2, 64, 64, strided, 1201});  // several tokens per thread: the pipe goes round
      check_merge({type, 4, 128, 64, strided});
      check_merge({type, 2, 20, 20, strided});
    }
  }
}

}  // namespace
}  // namespace teratron
