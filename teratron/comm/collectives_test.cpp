#include "teratron/comm/collectives.h"

#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "teratron/comm/thread_world.h"

namespace teratron {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&, const Group&)>;

enum class Space { replicated, varying, sharded };

struct Case {
  std::string name;
  Space from, to;
  Function forward;
};

/// The first `cut` and last `join` dimensions of 3-dimensional values; all sizes are multiples of the
/// group's.
std::vector<Case> cases(int64_t dim, int64_t other) {
  using enum Space;
  return {
      {"copy_to", replicated, varying, [](const auto& x, const Group& g) { return copy_to(x, g); }},
      {"reduce_from", varying, replicated, [](const auto& x, const Group& g) { return reduce_from(x, g); }},
      {"gather", sharded, replicated, [=](const auto& x, const Group& g) { return gather(x, dim, g); }},
      {"split", replicated, sharded, [=](const auto& x, const Group& g) { return split(x, dim, g); }},
      {"all_gather", sharded, varying, [=](const auto& x, const Group& g) { return all_gather(x, dim, g); }},
      {"reduce_scatter", varying, sharded,
       [=](const auto& x, const Group& g) { return reduce_scatter(x, dim, g); }},
      {"exchange", sharded, sharded,
       [=](const auto& x, const Group& g) { return exchange(x, dim, other, g); }},
  };
}

at::Tensor random_tensor(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::kDouble);
}

/// A random value of one space as this rank sees it: the same on all ranks where it is replicated.
at::Tensor random_value(at::IntArrayRef sizes, Space space, uint64_t seed, const Group& group) {
  return random_tensor(sizes, space == Space::replicated ? seed : seed * 131 + group.rank + 1);
}

/// The inner product over all ranks; a replicated value counts once.
double inner(const at::Tensor& a, const at::Tensor& b, Space space, const Group& group) {
  at::Tensor sum = (a * b).sum();
  if (space == Space::replicated) return sum.item<double>();
  group.communicator->all_reduce(sum, ReduceOp::sum).wait();
  return sum.item<double>();
}

void check_adjoint(const Case& c, at::IntArrayRef sizes, uint64_t seed, const Group& group) {
  const at::Tensor x = random_value(sizes, c.from, seed, group).requires_grad_(true);
  const at::Tensor fx = c.forward(x, group);
  const at::Tensor y = random_value(fx.sizes(), c.to, seed + 1000, group);
  const at::Tensor adjoint_y = torch::autograd::grad({fx}, {x}, {y})[0];
  const double left = inner(fx.detach(), y, c.to, group);
  const double right = inner(x.detach(), adjoint_y, c.from, group);
  EXPECT_NEAR(left, right, 1e-9 * (1 + std::abs(left))) << c.name << " in a group of " << group.size;
  EXPECT_TRUE(fx.is_contiguous()) << c.name;
}

TEST(Collectives, AdjointPropertyHoldsForRandomShapes) {
  for (int64_t ranks = 1; ranks <= 4; ++ranks) {
    run_ranks({.tp = ranks}, [&](const Mesh& mesh) {
      std::mt19937 random(7 * ranks);
      const auto pick = [&](int64_t low, int64_t high) {
        return low + static_cast<int64_t>(random() % (high - low + 1));
      };
      for (int trial = 0; trial < 12; ++trial) {
        const int64_t dim = pick(-3, 2), other = pick(-3, 2);
        const std::vector<int64_t> sizes = {ranks * pick(1, 3), ranks * pick(1, 3), ranks * pick(1, 3)};
        for (const Case& c : cases(dim, other))
          check_adjoint(c, sizes, 100 * trial + 1, mesh.group(Axis::tp));
      }
    });
  }
}

}  // namespace
}  // namespace teratron
