#include "teratron/comm/collectives.h"

#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&, const Group&)>;

enum class Space { replicated, varying, sharded };

struct Case {
  std::string name;
  Space from, to;
  Function forward;
};

/// `dim` is the dimension split, `other` that of all_to_all's concatenation; all sizes are multiples of the
/// group's.
std::vector<Case> cases(int64_t dim, int64_t other) {
  using enum Space;
  return {
      {"copy_to", replicated, varying, [](const auto& x, const Group& g) { return copy_to(x, g); }},
      {"reduce_from", varying, replicated, [](const auto& x, const Group& g) { return reduce_from(x, g); }},
      {"gather_from", sharded, replicated,
       [=](const auto& x, const Group& g) { return gather_from(x, dim, g); }},
      {"scatter_to", replicated, sharded,
       [=](const auto& x, const Group& g) { return scatter_to(x, dim, g); }},
      {"all_gather", sharded, varying, [=](const auto& x, const Group& g) { return all_gather(x, dim, g); }},
      {"reduce_scatter", varying, sharded,
       [=](const auto& x, const Group& g) { return reduce_scatter(x, dim, g); }},
      {"all_to_all", sharded, sharded,
       [=](const auto& x, const Group& g) { return all_to_all(x, dim, other, g); }},
  };
}

at::Tensor random_tensor(at::IntArrayRef sizes, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return to_test_device(at::randn(sizes, generator, at::kDouble));
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

TEST(WorldsCollectives, AdjointPropertyHoldsForRandomShapes) {
  for (const int64_t ranks : test_sizes()) {
    on_worlds({.tp = ranks}, [&](const Mesh& mesh) {
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

/// Against a computation from the values of all ranks.
TEST(WorldsCollectives, MoveTheRightValues) {
  on_worlds({.tp = 3}, [](const Mesh& mesh) {
    const Group& group = mesh.group(Axis::tp);
    for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (int64_t dim = 0; dim < 3; ++dim) {
        std::vector<at::Tensor> all;
        for (int64_t r = 0; r < 3; ++r) all.push_back(random_tensor({6, 3, 9}, r).mul(8).round().to(type));
        const at::Tensor& mine = all[group.rank];
        const at::Tensor sum = all[0] + all[1] + all[2];
        EXPECT_TRUE(at::equal(copy_to(mine, group), mine));
        EXPECT_TRUE(same_values(reduce_from(mine, group), sum));
        EXPECT_TRUE(at::equal(gather_from(mine, dim, group), at::cat(all, dim)));
        EXPECT_TRUE(at::equal(all_gather(mine, dim, group), at::cat(all, dim)));
        EXPECT_TRUE(at::equal(all_gather_values(mine, dim - 3, group), at::cat(all, dim)));
        EXPECT_TRUE(at::equal(scatter_to(mine, dim, group), mine.chunk(3, dim)[group.rank]));
        EXPECT_TRUE(at::equal(reduce_scatter(mine, dim, group), sum.chunk(3, dim)[group.rank]));
        for (int64_t gather_dim = 0; gather_dim < 3; ++gather_dim) {
          std::vector<at::Tensor> received;
          for (const at::Tensor& x : all) received.push_back(x.chunk(3, dim)[group.rank]);
          EXPECT_TRUE(at::equal(all_to_all(mine, dim, gather_dim, group), at::cat(received, gather_dim)));
        }
      }
    }
  });
}

TEST(WorldsCollectives, AcceptNonContiguousInputsAndDoNotModifyThem) {
  on_worlds({.tp = 2}, [](const Mesh& mesh) {
    const at::Tensor x = random_tensor({4, 6}, mesh.rank()).t();
    const at::Tensor before = x.clone();
    for (const Case& c : cases(1, 0)) {
      const at::Tensor plain = c.forward(before.contiguous(), mesh.group(Axis::tp));
      EXPECT_TRUE(at::equal(c.forward(x, mesh.group(Axis::tp)), plain)) << c.name;
      EXPECT_TRUE(at::equal(x, before)) << c.name;
    }
  });
}

TEST(Collectives, OfOneRankReturnTheirArgument) {
  const Mesh mesh;
  const at::Tensor x = random_tensor({2, 3, 4}, 1).requires_grad_(true);
  for (const Case& c : cases(1, 2)) EXPECT_TRUE(c.forward(x, mesh.group(Axis::tp)).is_same(x)) << c.name;
}

TEST(WorldsCollectives, ValuesCarryNoGradient) {
  on_worlds({.tp = 2}, [](const Mesh& mesh) {
    const at::Tensor x = random_tensor({2, 2}, 1).requires_grad_(true);
    EXPECT_FALSE(all_gather_values(x, 0, mesh.group(Axis::tp)).requires_grad());
    EXPECT_TRUE(all_gather(x, 0, mesh.group(Axis::tp)).requires_grad());
  });
}

/// Two sequence-parallel layers over tp x dp against one rank: collectives of two groups run inside four
/// concurrent backwards.
TEST(WorldsCollectives, RunInsideBackwardOfFourRanks) {
  const int64_t s = 8, h = 6, f = 12;
  const at::Tensor a = random_tensor({f, h}, 1), b = random_tensor({h, f}, 2);
  const auto batch = [&](int64_t replica) { return random_tensor({s, h}, 10 + replica); };
  const auto loss_of = [](const at::Tensor& y) { return y.sin().sum(); };
  at::Tensor whole_a = a.clone().requires_grad_(true), whole_b = b.clone().requires_grad_(true);
  for (int64_t replica = 0; replica < 2; ++replica) {
    at::Tensor x = batch(replica);
    for (int layer = 0; layer < 2; ++layer) x = x + at::gelu(x.matmul(whole_a.t())).matmul(whole_b.t());
    torch::autograd::backward({loss_of(x)}, {});
  }
  on_worlds({.tp = 2, .dp = 2}, [&](const Mesh& mesh) {
    const Group &tp = mesh.group(Axis::tp), &dp = mesh.group(Axis::dp);
    for (int step = 0; step < 10; ++step) {
      at::Tensor my_a = a.chunk(2, 0)[tp.rank].clone().requires_grad_(true);
      at::Tensor my_b = b.chunk(2, 1)[tp.rank].clone().requires_grad_(true);
      at::Tensor x = batch(dp.rank).chunk(2, 0)[tp.rank];
      for (int layer = 0; layer < 2; ++layer) {
        const at::Tensor hidden = at::gelu(all_gather(x, 0, tp).matmul(copy_to(my_a, dp).t()));
        x = x + reduce_scatter(hidden.matmul(copy_to(my_b, dp).t()), 0, tp);
      }
      torch::autograd::backward({loss_of(x)}, {});
      EXPECT_TRUE(at::allclose(my_a.grad(), whole_a.grad().chunk(2, 0)[tp.rank], 1e-10, 1e-12));
      EXPECT_TRUE(at::allclose(my_b.grad(), whole_b.grad().chunk(2, 1)[tp.rank], 1e-10, 1e-12));
    }
  });
}

/// loss = sum over ranks of |reduce_scatter(x)|^2 / 2: the Hessian times v is all_gather(reduce_scatter(v)).
TEST(WorldsCollectives, HaveSecondDerivatives) {
  on_worlds({.tp = 2}, [](const Mesh& mesh) {
    const Group& group = mesh.group(Axis::tp);
    const at::Tensor x = random_tensor({4, 3}, mesh.rank()).requires_grad_(true);
    const at::Tensor v = random_tensor({4, 3}, 10 + mesh.rank());
    const at::Tensor loss = reduce_scatter(x, 0, group).square().sum() / 2;
    const at::Tensor first = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
    const at::Tensor second = torch::autograd::grad({first}, {x}, {v})[0];
    EXPECT_TRUE(at::allclose(second, all_gather(reduce_scatter(v, 0, group), 0, group)));
  });
}

/// Buffers that live at the same time do not overlap and are reused, although addresses differ between ranks.
TEST(WorldsCollectives, GatherIntoSymmetricMemory) {
  for (const int64_t ranks : test_sizes()) {
    on_worlds({.tp = ranks}, [](const Mesh& mesh) {
      const Group& group = mesh.group(Axis::tp);
      at::Tensor other_addresses = to_test_device(at::zeros({group.rank * 3'000'000}));
      const auto start = [&](int64_t length, at::ScalarType type, int64_t value) {
        const at::TensorOptions options = to_test_device(at::zeros({1}, type)).options();
        at::Tensor whole = group.communicator->alloc_symmetric({group.size, length}, options);
        whole[group.rank].fill_(value + group.rank);
        return std::pair(whole, group.communicator->all_gather(whole, whole[group.rank]));
      };
      const auto check = [&](const at::Tensor& whole, int64_t value) {
        for (int64_t r = 0; r < group.size; ++r) EXPECT_TRUE((whole[r] == value + r).all().item<bool>());
      };
      for (int64_t round = 0; round < 6; ++round) {
        auto [a, a_work] = start(700'000, at::kBFloat16, round);
        auto [b, b_work] = start(700'000, at::kBFloat16, round + 10);
        auto [c, c_work] = start(5, at::kInt, round + 20);
        for (Work* work : {&b_work, &a_work, &c_work}) work->wait();
        check(a, round);
        if (round % 2) a.reset();
        check(b, round + 10);
        b.reset();
        check(c, round + 20);
        if (round == 3) other_addresses.reset();
      }
    });
  }
}

/// Blocks of rank r have 1000 r rows, in odd rounds 1000 more; so rank 0 first sends none.
TEST(WorldsCollectives, ShiftBlocksOfAnySize) {
  for (const int64_t ranks : test_sizes()) {
    on_worlds({.cp = ranks}, [](const Mesh& mesh) {
      const Group& group = mesh.group(Axis::cp);
      if (group.size == 1) return;
      const at::TensorOptions options = to_test_device(at::zeros({1}, at::kFloat)).options();
      const auto rows_of = [](int64_t rank, int64_t round) { return (rank + round % 2) * 1000; };
      const auto value_of = [](int64_t rank, int64_t round, int64_t distance) {
        return 100 * rank + 10 * round + distance;
      };
      struct Block {
        at::Tensor rows;
        Work work;
        int64_t distance;
      };
      const auto start = [&](int64_t round, int64_t distance) {
        Communicator& communicator = *group.communicator;
        const int64_t from = communicator.rank_at(-distance);
        const at::Tensor sent =
            at::full({rows_of(group.rank, round), 64}, value_of(group.rank, round, distance), options);
        const at::Tensor received =
            communicator.alloc_symmetric({group.size * 1000, 64}, options).narrow(0, 0, rows_of(from, round));
        return Block{received, communicator.shift({{received, sent, distance}}), distance};
      };
      for (int64_t round = 0; round < 10; ++round) {
        std::vector<Block> blocks;  // on their way together
        for (int64_t distance = 1; distance < group.size; ++distance) {
          blocks.push_back(start(round, distance));
          blocks.push_back(start(round, -distance));
        }
        for (Block& block : blocks) {
          block.work.wait();
          const int64_t from = group.communicator->rank_at(-block.distance);
          EXPECT_EQ(block.rows.size(0), rows_of(from, round));
          EXPECT_TRUE((block.rows == value_of(from, round, block.distance)).all().item<bool>());
        }
      }
    });
  }
}

/// Part p of rank r is r + p + 1 once produced. Sizes below and above the copy-engine threshold.
TEST(WorldsCollectives, ReduceScatterPipelinesParts) {
  for (const int64_t ranks : test_sizes()) {
    on_worlds({.tp = ranks}, [](const Mesh& mesh) {
      const Group& group = mesh.group(Axis::tp);
      for (const int64_t count : {7, 700'000, 900'000, 700'000}) {
        const at::Tensor x = to_test_device(at::full({group.size, count}, 99.0, at::kBFloat16));
        const at::Tensor y = at::empty({count}, x.options());
        std::vector<int64_t> produced(group.size);
        const auto produce = [&](int64_t first, int64_t last) {
          for (int64_t part = first; part < last; ++part) {
            produced[part] += 1;
            x[part].fill_(group.rank + part + 1);
          }
        };
        group.communicator->reduce_scatter_pipelined(y, x, ReduceOp::sum, produce).wait();
        EXPECT_EQ(produced, std::vector<int64_t>(group.size, 1));
        const int64_t expected = group.size * (group.size - 1) / 2 + group.size * (group.rank + 1);
        EXPECT_TRUE((y == expected).all().item<bool>()) << count;
      }
    });
  }
}

}  // namespace
}  // namespace teratron
