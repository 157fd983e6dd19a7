// Rows in groups on the GPU against the CPU: casts bit by bit, products within the rounding of their result.
#include <ATen/CPUGeneratorImpl.h>

#include "teratron/kernels/fp8/grouped_fp8.h"
#include "teratron/kernels/fp8/launchers.h"
#include "teratron/testing/kernels.h"

namespace teratron {
namespace {

class GroupedFp8Gpu : public Gpu {};

struct Fp8GroupedCase {
  std::vector<int64_t> counts;  // rows of each group
  int64_t out, in;
  int64_t rest = 0;  // rows of no group

  int64_t groups() const { return static_cast<int64_t>(counts.size()); }
  int64_t used() const { return ends_of(counts)[-1].item<int64_t>(); }
};

std::string describe(const Fp8GroupedCase& c) {
  return fmt::format("{} groups of {}.. rows, {} to {}", c.counts.size(), c.counts[0], c.in, c.out);
}

// Random rows; those of no group are NaN.
at::Tensor case_rows(const Fp8GroupedCase& c, int64_t width, at::ScalarType type = at::kBFloat16) {
  const at::Tensor x = at::randn({c.used() + c.rest, width}).to(type);
  x.narrow(0, c.used(), c.rest).fill_(std::nan(""));
  return x;
}

at::Tensor bytes_of(const at::Tensor& fp8) {
  return fp8.cpu().view(at::kByte);
}

struct OnBoth {
  Fp8Matrix cpu, gpu;
};

/// Cast on both devices.
OnBoth cast_on_both(const at::Tensor& x, Fp8Format format, const std::vector<Fp8Groups>& groups) {
  OnBoth both;
  for (const bool on_gpu : {false, true}) {
    const Fp8Groups* const of = groups.empty() ? nullptr : &groups[on_gpu ? 1 : 0];
    const at::Tensor here = on_gpu ? x.cuda() : x;
    const at::Tensor amax = at::zeros({1}, here.options().dtype(at::kFloat));
    const Fp8Scale scale = compute_fp8_scale(here, format, of);
    (on_gpu ? both.gpu : both.cpu) =
        cast_to_fp8(here, {.format = format, .scale = scale, .amax = amax, .groups = of});
    const int64_t rows = of ? of->ends_G[-1].item<int64_t>() : x.size(0);
    const at::Tensor known = x.narrow(0, 0, rows).to(at::kFloat).abs();
    EXPECT_EQ(amax.item<float>(), rows > 0 ? known.max().item<float>() : 0.0F);
  }
  EXPECT_TRUE(at::equal(both.gpu.scale_inv.cpu(), both.cpu.scale_inv));
  return both;
}

std::vector<Fp8Groups> groups_on_both(const Fp8GroupedCase& c) {
  const at::Tensor ends = ends_of(c.counts);
  return {make_fp8_groups(ends, c.used() + c.rest), make_fp8_groups(ends.cuda(), c.used() + c.rest)};
}

void check_cast(const Fp8GroupedCase& c, at::ScalarType type, Fp8Format format) {
  SCOPED_TRACE(fmt::format("{} {}", describe(c), at::toString(type)));
  const auto [cpu, gpu] = cast_on_both(case_rows(c, c.in, type), format, groups_on_both(c));
  EXPECT_TRUE(
      at::equal(bytes_of(gpu.rows).narrow(0, 0, c.used()), bytes_of(cpu.rows).narrow(0, 0, c.used())));
  EXPECT_TRUE(at::equal(bytes_of(gpu.columns), bytes_of(cpu.columns)));
}

void check_products(const Fp8GroupedCase& c, Fp8Format format) {
  SCOPED_TRACE(describe(c));
  const std::vector<Fp8Groups> groups = groups_on_both(c);
  const OnBoth x = cast_on_both(case_rows(c, c.in), Fp8Format::e4m3, groups),
               dy = cast_on_both(case_rows(c, c.out), format, groups),
               w = cast_on_both(at::randn({c.groups() * c.out, c.in}), Fp8Format::e4m3, {});
  const auto used = [&](const at::Tensor& rows) { return rows.narrow(0, 0, c.used()); };
  const auto forward = [&] { return used(fp8_grouped_forward(x.gpu, w.gpu, groups[1], at::kBFloat16)); };
  const auto backward = [&] {
    return used(fp8_grouped_input_gradient(dy.gpu, w.gpu, groups[1], at::kBFloat16));
  };
  const at::Tensor y = forward(), dx = backward();
  EXPECT_LT(relative_error(y, used(fp8_grouped_forward(x.cpu, w.cpu, groups[0], at::kFloat))), 1e-2);
  EXPECT_LT(relative_error(dx, used(fp8_grouped_input_gradient(dy.cpu, w.cpu, groups[0], at::kFloat))), 4e-3);
  EXPECT_TRUE(at::equal(y, forward()) && at::equal(dx, backward()));
  at::Tensor expected = at::randn({c.groups(), c.out, c.in});
  const at::Tensor before = expected.cuda();
  fp8_grouped_weight_gradient_(expected, dy.cpu, x.cpu, groups[0], /*add=*/true);
  at::Tensor added = before.clone(), written = at::full_like(before, std::nan(""));
  fp8_grouped_weight_gradient_(added, dy.gpu, x.gpu, groups[1], /*add=*/true);
  fp8_grouped_weight_gradient_(written, dy.gpu, x.gpu, groups[1], /*add=*/false);
  EXPECT_LT(relative_error(added, expected), 5e-4);
  EXPECT_LT(relative_error(written + before, expected), 5e-4);
  const at::Tensor again = before.clone();
  fp8_grouped_weight_gradient_(again, dy.gpu, x.gpu, groups[1], /*add=*/true);
  EXPECT_TRUE(at::equal(again, added));
}

std::vector<int64_t> random_counts(int64_t groups, int64_t rows, uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor weight = at::randn({groups}, generator, at::kDouble).exp();
  const at::Tensor chosen = at::multinomial(weight, rows, /*replacement=*/true, generator);
  const at::Tensor counts = at::bincount(chosen, {}, groups);
  return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + groups};
}

std::vector<Fp8GroupedCase> fp8_grouped_cases() {
  return {{.counts = {128}, .out = 256, .in = 128},
          {.counts = {1}, .out = 16, .in = 16},
          {.counts = {0, 0, 0}, .out = 128, .in = 256, .rest = 5},
          {.counts = {0, 1, 0, 0, 64, 65, 0}, .out = 272, .in = 80},
          {.counts = {127, 128, 129, 255, 256, 257, 384, 385}, .out = 768, .in = 208, .rest = 77},
          {.counts = {31, 32, 33, 3000}, .out = 2320, .in = 528, .rest = 1},
          {.counts = {700, 20, 1, 0, 900}, .out = 144, .in = 1040},
          {.counts = random_counts(1024, 3000, 1), .out = 64, .in = 64, .rest = 200}};
}

TEST_F(GroupedFp8Gpu, CastsMatchTheCpu) {
  for (const Fp8GroupedCase& c : fp8_grouped_cases()) {
    check_cast(c, at::kBFloat16, Fp8Format::e4m3);
    check_cast(c, at::kFloat, Fp8Format::e5m2);
  }
}

TEST_F(GroupedFp8Gpu, ProductsMatchTheCpu) {
  for (const Fp8GroupedCase& c : fp8_grouped_cases()) {
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) check_products(c, format);
  }
}

TEST_F(GroupedFp8Gpu, ProductsMatchTheCpuOfExperts) {
  check_products({.counts = std::vector<int64_t>(8, 256), .out = 1536, .in = 1024}, Fp8Format::e5m2);
  check_products({.counts = random_counts(8, 3000, 2), .out = 1536, .in = 1024}, Fp8Format::e5m2);
  check_products({.counts = random_counts(32, 4096, 3), .out = 1024, .in = 768, .rest = 300},
                 Fp8Format::e4m3);
}

TEST_F(GroupedFp8Gpu, ProductsMatchTheCpuAtRandomSizes) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const at::Tensor sizes =
        at::randint(1, 45, {2}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong);
    check_products({.counts = random_counts(1 + static_cast<int64_t>(seed * 7 % 40),
                                            1 + static_cast<int64_t>(seed * 331 % 2000), seed),
                    .out = 16 * sizes[0].item<int64_t>(),
                    .in = 16 * sizes[1].item<int64_t>(),
                    .rest = static_cast<int64_t>(seed % 5 * 40)},
                   seed % 2 == 0 ? Fp8Format::e5m2 : Fp8Format::e4m3);
  }
}

// What other GPUs than Hopper compute.
TEST_F(GroupedFp8Gpu, OneProductPerGroupMatchesTheCpu) {
  const Fp8GroupedCase c{.counts = {127, 0, 129, 1}, .out = 272, .in = 208, .rest = 7};
  const std::vector<Fp8Groups> groups = groups_on_both(c);
  const OnBoth x = cast_on_both(case_rows(c, c.in), Fp8Format::e4m3, groups),
               w = cast_on_both(at::randn({c.groups() * c.out, c.in}), Fp8Format::e4m3, {});
  const auto used = [&](const at::Tensor& rows) { return rows.narrow(0, 0, c.used()); };
  EXPECT_LT(relative_error(used(fp8_grouped_forward(x.gpu, w.gpu, groups[1], at::kFloat)),
                           used(fp8_grouped_forward(x.cpu, w.cpu, groups[0], at::kFloat))),
            1e-2);
}

}  // namespace
}  // namespace teratron
