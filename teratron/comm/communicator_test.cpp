#include "teratron/comm/communicator.h"

#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/comm/broadcast_coalesced.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                            at::kLong,  at::kInt,    at::kByte};

/// The input of rank `rank`; every rank can compute that of all.
at::Tensor input_of(int64_t rank, int64_t count, at::ScalarType type) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 + rank);
  if (at::isIntegralType(type, true)) return at::randint(0, 60, {count}, generator, at::kLong).to(type);
  return at::randn({count}, generator, at::kDouble).to(type);
}

/// Reference reduction: in rank order, half precision in float, rounded once.
at::Tensor reduced(int64_t ranks, int64_t count, at::ScalarType type, ReduceOp op) {
  const bool half = type == at::kBFloat16 || type == at::kHalf;
  at::Tensor sum;
  for (int64_t r = 0; r < ranks; ++r) {
    const at::Tensor next = input_of(r, count, type).to(half ? at::kFloat : type);
    if (!sum.defined())
      sum = next;
    else if (op == ReduceOp::max)
      sum = at::maximum(sum, next);
    else if (op == ReduceOp::min)
      sum = at::minimum(sum, next);
    else
      sum = sum + next;
  }
  if (op == ReduceOp::avg) sum = at::isIntegralType(type, true) ? at::floor_divide(sum, ranks) : sum / ranks;
  return sum.to(type);
}

class WorldsOfSize : public testing::TestWithParam<int64_t> {
 protected:
  /// Runs `body` with the group of all ranks, once per element type.
  void for_types(const std::function<void(const Group&, at::ScalarType)>& body) {
    on_worlds({.dp = GetParam()}, [&](const Mesh& mesh) {
      for (at::ScalarType type : kTypes) body(mesh.world(), type);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, WorldsOfSize, testing::Values(1, 2, 3, 4));

TEST_P(WorldsOfSize, AllReduceEqualsThePlainReduction) {
  for_types([&](const Group& group, at::ScalarType type) {
    for (int64_t count : {0, 1, 5, 4099}) {
      for (ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
        at::Tensor x = to_test_device(input_of(group.rank, count, type));
        group.communicator->all_reduce(x, op).wait();
        EXPECT_TRUE(same_values(x, reduced(group.size, count, type, op)))
            << type << " " << static_cast<int>(op);
      }
    }
  });
}

TEST_P(WorldsOfSize, ReduceScatterEqualsItsPartOfTheReduction) {
  for_types([&](const Group& group, at::ScalarType type) {
    const int64_t part = 1500, count = part * group.size;
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      const at::Tensor x = to_test_device(input_of(group.rank, count, type));
      at::Tensor y = at::empty({part}, x.options());
      group.communicator->reduce_scatter(y, x, op).wait();
      EXPECT_TRUE(same_values(y, reduced(group.size, count, type, op).narrow(0, group.rank * part, part)))
          << type;
      EXPECT_TRUE(same_values(x, input_of(group.rank, count, type))) << "the input changed";
      at::Tensor in_place = x.clone();  // the output is this rank's part of the input
      group.communicator->reduce_scatter(in_place.narrow(0, group.rank * part, part), in_place, op).wait();
      EXPECT_TRUE(at::equal(in_place.narrow(0, group.rank * part, part), y)) << type;
    }
  });
}

TEST_P(WorldsOfSize, AllGatherAndAllToAllMoveTheParts) {
  for_types([&](const Group& group, at::ScalarType type) {
    const int64_t part = 7, n = group.size;
    std::vector<at::Tensor> whole, mine;
    for (int64_t r = 0; r < n; ++r) {
      whole.push_back(to_test_device(input_of(r, part, type)));
      mine.push_back(to_test_device(input_of(r, part * n, type)).narrow(0, group.rank * part, part));
    }
    at::Tensor gathered = at::empty({n * part}, whole[0].options());
    group.communicator->all_gather(gathered, to_test_device(input_of(group.rank, part, type))).wait();
    EXPECT_TRUE(at::equal(gathered, at::cat(whole)));
    at::Tensor in_place = at::zeros({n * part}, whole[0].options());
    in_place.narrow(0, group.rank * part, part).copy_(whole[group.rank]);
    group.communicator->all_gather(in_place, in_place.narrow(0, group.rank * part, part)).wait();
    EXPECT_TRUE(at::equal(in_place, gathered));
    at::Tensor exchanged = at::empty({n * part}, whole[0].options());
    group.communicator->all_to_all(exchanged, to_test_device(input_of(group.rank, part * n, type))).wait();
    EXPECT_TRUE(at::equal(exchanged, at::cat(mine)));
  });
}

TEST_P(WorldsOfSize, LargeReductionsAreScattered) {
  on_worlds({.dp = GetParam()}, [&](const Mesh& mesh) {
    const Group& group = mesh.world();
    const auto check = [&](int64_t part, at::ScalarType type, ReduceOp op) {
      const int64_t count = part * group.size;
      const at::Tensor x = to_test_device(input_of(group.rank, count, type));
      const at::Tensor mine = x.narrow(0, group.rank * part, part);
      group.communicator->reduce_scatter(mine, x, op).wait();
      const at::Tensor expected = reduced(group.size, count, type, op);
      EXPECT_TRUE(same_values(mine, expected.narrow(0, group.rank * part, part))) << type;
    };
    check(230'000, at::kFloat, ReduceOp::avg);
    check(530'000, at::kBFloat16, ReduceOp::sum);
  });
}

TEST_P(WorldsOfSize, BroadcastFromEveryRoot) {
  for_types([&](const Group& group, at::ScalarType type) {
    for (int64_t root = 0; root < group.size; ++root) {
      at::Tensor x = to_test_device(input_of(group.rank, 33, type));
      group.communicator->broadcast(x, root).wait();
      EXPECT_TRUE(same_values(x, input_of(root, 33, type)));
    }
  });
}

TEST_P(WorldsOfSize, AllGatherBytesOfAnyLength) {
  on_worlds({.dp = GetParam()}, [](const Mesh& mesh) {
    const auto& world = mesh.world();
    const auto bytes =
        world.communicator->all_gather_bytes(std::string(100 * world.rank, static_cast<char>(world.rank)));
    ASSERT_EQ(static_cast<int64_t>(bytes.size()), world.size);
    for (int64_t r = 0; r < world.size; ++r) EXPECT_EQ(bytes[r], std::string(100 * r, static_cast<char>(r)));
  });
}

TEST_P(WorldsOfSize, PointToPointRunsBothWaysInOrder) {
  on_worlds({.pp = GetParam()}, [](const Mesh& mesh) {
    const Group& group = mesh.group(Axis::pp);
    const int64_t next = (group.rank + 1) % group.size, previous = (group.rank + group.size - 1) % group.size;
    for (int step = 0; step < 20; ++step) {
      const at::Tensor up = to_test_device(at::full({3}, group.rank + 100.0 * step)),
                       down = to_test_device(at::full({2, 2}, -group.rank - 1.0));
      at::Tensor from_below = to_test_device(at::empty({3})), from_above = to_test_device(at::empty({2, 2}));
      group.communicator->batch_isend_irecv({{up, next, true}, {from_below, previous, false}}).wait();
      group.communicator->batch_isend_irecv({{down, previous, true}}).wait();
      group.communicator->batch_isend_irecv({{from_above, next, false}}).wait();
      EXPECT_EQ(from_below[0].item<double>(), previous + 100.0 * step);
      EXPECT_EQ(from_above[1][1].item<double>(), -next - 1.0);
    }
  });
}

TEST(WorldsCommunicator, PointToPointBetweenRanksThatAreNotNeighbours) {
  on_worlds({.pp = 4}, [](const Mesh& mesh) {
    const Group& group = mesh.group(Axis::pp);
    const int64_t across = (group.rank + 2) % 4;
    constexpr int64_t many = 1 << 20;  // more than fits in a send buffer
    const at::Tensor mine = to_test_device(at::full({many}, static_cast<double>(group.rank)));
    const at::Tensor theirs = to_test_device(at::empty({many}));
    group.communicator->batch_isend_irecv({{mine, across, true}, {theirs, across, false}}).wait();
    EXPECT_EQ(theirs.min().item<double>(), static_cast<double>(across));
    EXPECT_EQ(theirs.max().item<double>(), static_cast<double>(across));
  });
}

TEST_P(WorldsOfSize, BroadcastCoalescedCopiesTheTensorsOfRankZero) {
  on_worlds({.tp = GetParam()}, [](const Mesh& mesh) {
    const auto batch = [](int64_t rank) {
      return std::vector<at::Tensor>{to_test_device(input_of(rank, 15, at::kLong).view({3, 5})),
                                     to_test_device(input_of(rank, 7, at::kFloat)),
                                     to_test_device(input_of(rank, 3, at::kByte).to(at::kBool)),
                                     to_test_device(input_of(rank, 0, at::kInt)),
                                     to_test_device(input_of(rank, 5, at::kBFloat16)),
                                     to_test_device(input_of(rank, 1, at::kDouble).squeeze())};
    };
    const auto got = broadcast_coalesced(batch(mesh.rank()), mesh.group(Axis::tp));
    const auto expected = batch(0);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
      EXPECT_EQ(got[i].scalar_type(), expected[i].scalar_type());
      EXPECT_EQ(got[i].sizes(), expected[i].sizes());
    }
  });
}

TEST(WorldsCommunicator, NanWinsInMaxAndMin) {
  if (!sums_are_exact()) GTEST_SKIP() << "NCCL drops NaN in max and min";
  on_worlds({.dp = 3}, [](const Mesh& mesh) {
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (int64_t place = 0; place < 3; ++place) {
        for (ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
          at::Tensor x = at::full({4}, mesh.rank() == place ? nan : 1.0, type);
          mesh.world().communicator->all_reduce(x, op).wait();
          EXPECT_TRUE(x.isnan().all().item<bool>()) << type << " at rank " << place;
        }
      }
    }
  });
}

TEST(WorldsCommunicator, FlagsAreReducedAsOrAndAnd) {
  on_worlds({.dp = 3}, [](const Mesh& mesh) {
    const auto flags = [&](ReduceOp op) {
      at::Tensor x = to_test_device(at::tensor({mesh.rank() == 1 ? 1 : 0, 1, 0}).to(at::kBool));
      mesh.world().communicator->all_reduce(x, op).wait();
      return x.to(at::kCPU);
    };
    EXPECT_TRUE(at::equal(flags(ReduceOp::max), at::tensor({1, 1, 0}).to(at::kBool)));
    EXPECT_TRUE(at::equal(flags(ReduceOp::sum), at::tensor({1, 1, 0}).to(at::kBool)));
    EXPECT_TRUE(at::equal(flags(ReduceOp::min), at::tensor({0, 1, 0}).to(at::kBool)));
  });
}

/// Large and small tensors, with sums that depend on the rank order. In this process under any launcher.
TEST(HostCommunicators, SumsAreBitwiseReproducible) {
  for (const int64_t count : {7, 10007}) {
    std::mutex mutex;
    std::vector<at::Tensor> results;
    const auto add = [&](World& world) {
      at::Tensor x = input_of(world.rank(), count, at::kFloat) * std::pow(10.0, world.rank());
      world.group({0, 1, 2, 3})->all_reduce(x, ReduceOp::sum).wait();
      const std::lock_guard lock(mutex);
      results.push_back(x);
    };
    for (int run = 0; run < 3; ++run) {
      run_ranks(4, add);
      run_over_sockets(4, add);
    }
    EXPECT_EQ(results.size(), 24U);
    for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0]));
  }
}

TEST(WorldsCommunicator, SubgroupsRunConcurrently) {
  on_worlds({.tp = 2, .pp = 2, .dp = 2}, [](const Mesh& mesh) {
    for (int step = 0; step < 200; ++step) {
      for (Axis axis : {Axis::tp, Axis::dp, Axis::pp}) {
        // Groups run at different speeds.
        if ((mesh.rank() + step) % 5 == 0) at::randn({64, 64}).matmul(at::randn({64, 64}));
        const Group& group = mesh.group(axis);
        at::Tensor x = to_test_device(at::full({100}, mesh.rank() + 10 * step, at::kLong));
        group.communicator->all_reduce(x, ReduceOp::sum).wait();
        int64_t expected = 0;
        for (int64_t rank : group.ranks.all()) expected += rank + 10 * step;
        ASSERT_TRUE((x == expected).all().item<bool>());
      }
    }
  });
}

TEST(ThreadCommunicator, EqualListsOfRanksCreateIndependentGroups) {
  const auto body = [](World& world) {
    const auto first = world.group({0, 1});
    const auto second = world.group({0, 1});
    const auto reversed = world.group({1, 0});
    EXPECT_EQ(reversed->rank(), 1 - world.rank());
    // One rank is a collective ahead in one group, which must not affect the other.
    at::Tensor a = at::full({1}, static_cast<double>(world.rank())), b = at::full({1}, 10.0);
    if (world.rank() == 0) first->batch_isend_irecv({{b, 1, true}});
    second->all_reduce(a, ReduceOp::sum);
    EXPECT_EQ(a.item<double>(), 1);
    if (world.rank() == 1) first->batch_isend_irecv({{a, 0, false}});
    EXPECT_EQ(a.item<double>(), world.rank() == 1 ? 10 : 1);
  };
  run_ranks(2, body);
  run_over_sockets(2, body);
}

struct Divergence {
  const char* name;
  std::function<void(Communicator&)> run;
  const char* message;
};
void PrintTo(const Divergence& divergence, std::ostream* out) {
  *out << divergence.name;
}

constexpr int64_t kMany = 1 << 20;

/// Each ends its job: tests/cli runs them one at a time in launched jobs.
class WorldsThatDiffer : public testing::TestWithParam<Divergence> {};
INSTANTIATE_TEST_SUITE_P(
    WorldsCommunicator, WorldsThatDiffer,
    testing::Values(Divergence{"shape",
                               [](Communicator& group) {
                                 sum(group, to_test_device(at::zeros({group.rank() == 0 ? 4 : kMany})));
                               },
                               "rank 0: all_reduce(sum) fp32 [4]; rank 1: all_reduce(sum) fp32 [1048576]"},
                    Divergence{"operation",
                               [](Communicator& group) {
                                 const at::Tensor x = to_test_device(at::zeros({kMany}));
                                 if (group.rank() == 0) return sum(group, x);
                                 group.all_gather(x, x.narrow(0, 0, kMany / 2)).wait();
                               },
                               "rank 0: all_reduce(sum) fp32 [1048576]; rank 1: all_gather fp32 [524288]"},
                    Divergence{"order",
                               [](Communicator& group) {
                                 if (group.rank() == 0) sum(group, to_test_device(at::zeros({4})));
                                 sum(group, to_test_device(at::zeros({kMany})));
                               },
                               "rank 0: all_reduce(sum) fp32 [4]; rank 1: all_reduce(sum) fp32 [1048576]"}),
    [](const auto& info) { return info.param.name; });

/// For a minute, on the hosts.
void run_barriers(Communicator& group) {
  for (int i = 0; i < 6000; ++i) {
    group.barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_P(WorldsThatDiffer, DISABLED_AreNamed) {
  on_worlds({.dp = 2}, [&](const Mesh& mesh) {
    Communicator& group = *mesh.world().communicator;
    sum(group, to_test_device(at::zeros({2})));
    try {
      GetParam().run(group);
      // GPUs do not wait for each other here; the mismatch is detected at the collective's timeout.
      run_barriers(group);
      ADD_FAILURE() << "no fault";
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.what(),
                std::string("the ranks of group [0 1] differ at their collective 2: ") + GetParam().message);
    }
  });
}

/// An exception cannot reach a rank that waits for its GPU: the process ends. A rank whose GPU has finished
/// fails at the barrier.
TEST_P(WorldsThatDiffer, DISABLED_EndTheJob) {
  on_worlds({.dp = 2}, [&](const Mesh& mesh) {
    Communicator& group = *mesh.world().communicator;
    at::Tensor x = to_test_device(at::zeros({2}));
    const auto wait_for_gpu = [&] {
      sum(group, x);
      return x.sum().item<double>();
    };
    wait_for_gpu();  // loads its kernels, which would block behind a hanging one
    try {
      GetParam().run(group);
      wait_for_gpu();
      run_barriers(group);
      ADD_FAILURE() << "no fault";
    } catch (const Fault& fault) {
      error_line(fault.what());
      _exit(static_cast<int>(fault.exit_code()));
    }
  });
}

TEST(SelfCommunicator, IsTheIdentity) {
  const auto self = self_communicator();
  const at::Tensor x = input_of(0, 6, at::kFloat);
  at::Tensor y = at::zeros({6}), z = at::zeros({6});
  self->all_gather(y, x).wait();
  self->batch_isend_irecv({{z, 0, false}, {x, 0, true}}).wait();
  EXPECT_TRUE(at::equal(x, y));
  EXPECT_TRUE(at::equal(x, z));
  self->all_reduce(y, ReduceOp::avg).wait();
  EXPECT_TRUE(at::equal(x, y));
  EXPECT_EQ(self->all_gather_bytes("a"), std::vector<std::string>{"a"});
  self->barrier();
}

TEST(Work, WaitsOnce) {
  int waits = 0;
  Work work([&] { ++waits; });
  work.wait();
  work.wait();
  EXPECT_EQ(waits, 1);
  Work().wait();
}

}  // namespace
}  // namespace teratron
