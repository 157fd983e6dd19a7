#include "teratron/comm/host/thread_world.h"

#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

TEST(ThreadWorld, NamesMismatchedOperations) {
  const std::string fault = fault_over_threads(3, [](World& world, Communicator& group) {
    sum(group, at::ones({2}));
    if (world.rank() == 1) group.barrier();
    sum(group, at::ones({4, 2}));
  });
  EXPECT_EQ(fault,
            "the ranks of group [0 1 2] differ at their collective 2: ranks 0, 2: all_reduce(sum) fp32 [4, "
            "2]; rank "
            "1: barrier");
}

TEST(ThreadWorld, NamesMismatchedShapesDtypesAndReductions) {
  const auto shapes = fault_over_threads(
      2, [](World& world, Communicator& group) { sum(group, at::ones({world.rank() + 1})); });
  EXPECT_NE(shapes.find("rank 0: all_reduce(sum) fp32 [1]; rank 1: all_reduce(sum) fp32 [2]"),
            std::string::npos)
      << shapes;
  const auto types = fault_over_threads(2, [](World& world, Communicator& group) {
    sum(group, at::ones({3}, world.rank() == 0 ? at::kFloat : at::kBFloat16));
  });
  EXPECT_NE(types.find("rank 0: all_reduce(sum) fp32 [3]; rank 1: all_reduce(sum) bf16 [3]"),
            std::string::npos)
      << types;
  const auto ops = fault_over_threads(2, [](World& world, Communicator& group) {
    group.all_reduce(at::ones({3}), world.rank() == 0 ? ReduceOp::max : ReduceOp::avg);
  });
  EXPECT_NE(ops.find("rank 0: all_reduce(max) fp32 [3]; rank 1: all_reduce(avg) fp32 [3]"), std::string::npos)
      << ops;
  const auto roots = fault_over_threads(
      2, [](World& world, Communicator& group) { group.broadcast(at::ones({3}), world.rank()); });
  EXPECT_NE(roots.find("rank 0: broadcast(root 0) fp32 [3]; rank 1: broadcast(root 1)"), std::string::npos)
      << roots;
}

TEST(ThreadWorld, NamesAMessageOfAnotherShape) {
  const std::string fault = fault_over_threads(2, [](World& world, Communicator& group) {
    if (world.rank() == 0) group.batch_isend_irecv({{at::ones({4}), 1, true}});
    if (world.rank() == 1) group.batch_isend_irecv({{at::ones({2, 2}), 0, false}});
  });
  EXPECT_EQ(fault, "rank 0 sent message fp32 [4], but rank 1 receives message fp32 [2, 2]");
}

TEST(ThreadWorld, AFaultInsideBackwardPropagates) {
  try {
    run_ranks({.tp = 2}, [](const Mesh& mesh) {
      const at::Tensor x = at::ones({4, 4}).requires_grad_(true);
      const Group& tp = mesh.group(Axis::tp);
      // The forwards agree; backward is an all_reduce on one rank and nothing on the other.
      const at::Tensor y = mesh.rank() == 0 ? copy_to(x, tp) : x * 1;
      torch::autograd::backward({y.sum()}, {});
      tp.communicator->barrier();
    });
    FAIL() << "no fault";
  } catch (const Fault& fault) {
    EXPECT_NE(std::string(fault.what()).find("rank 0: all_reduce(sum) fp32 [4, 4]; rank 1: barrier"),
              std::string::npos)
        << fault.what();
  }
}

TEST(ThreadWorld, ATimeoutNamesTheMissingRanks) {
  const std::string fault = fault_over_threads(
      3,
      [](World& world, Communicator& group) {
        sum(group, at::ones({2}));
        if (world.rank() == 2) std::this_thread::sleep_for(700ms);
        sum(group, at::ones({5}));
      },
      200ms);
  EXPECT_EQ(fault,
            "all_reduce(sum) fp32 [5] (collective 2 of group [0 1 2]) timed out after 0.2 s: rank 2 is "
            "computing or "
            "stuck outside any collective (its last here was collective 1, all_reduce(sum) fp32 [2])");
}

TEST(ThreadWorld, AReceiveTimesOutToo) {
  const std::string fault = fault_over_threads(
      2,
      [](World& world, Communicator& group) {
        if (world.rank() == 0) std::this_thread::sleep_for(500ms);
        if (world.rank() == 1) group.batch_isend_irecv({{at::ones({2}), 0, false}});
      },
      100ms);
  EXPECT_NE(fault.find("receive message fp32 [2] from rank 0 in group [0 1] timed out"), std::string::npos)
      << fault;
}

TEST(ThreadWorld, DoesNotWaitForARankThatHasEnded) {
  const std::string fault = fault_over_threads(3, [](World& world, Communicator& group) {
    if (world.rank() != 1) group.barrier();
  });
  EXPECT_EQ(fault, "barrier (collective 1 of group [0 1 2]) cannot complete: rank 1 has ended");
}

TEST(ThreadWorld, DetectsADeadlockBeforeTheTimeout) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_ranks({.tp = 2, .dp = 2}, [](const Mesh& mesh) {
      // 0 waits for 2, 2 for 3, 3 for 1 and 1 for 0.
      const bool dp_first = mesh.rank() == 0 || mesh.rank() == 3;
      mesh.group(dp_first ? Axis::dp : Axis::tp).communicator->barrier();
      mesh.group(dp_first ? Axis::tp : Axis::dp).communicator->barrier();
    });
    FAIL() << "no fault";
  } catch (const Fault& fault) {
    EXPECT_STREQ(
        fault.what(),
        "deadlock: the ranks wait for each other: rank 0 in barrier (collective 1 of group [0 2]); rank 1 in "
        "barrier "
        "(collective 1 of group [0 1]); rank 2 in barrier (collective 1 of group [2 3]); rank 3 in barrier "
        "(collective 1 of group [1 3])");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST(ThreadWorld, RethrowsTheFirstExceptionAndNoRankHangs) {
  std::atomic<int> aborted = 0;
  const auto body = [&](World& world) {
    const auto group = world.group({0, 1, 2, 3});
    group->barrier();
    if (world.rank() == 2) throw std::domain_error("rank 2 has a problem");
    try {
      group->barrier();
    } catch (const Fault& fault) {
      EXPECT_NE(std::string(fault.what()).find("rank 2 failed: rank 2 has a problem"), std::string::npos);
      ++aborted;
      EXPECT_THROW(world.group({0, 1, 2, 3})->barrier(), Fault) << "groups made later are aborted too";
      throw;
    }
  };
  EXPECT_THROW(run_ranks(4, body), std::domain_error);
  EXPECT_EQ(aborted, 3);
}

TEST(ThreadWorld, AbortWakesAllRanks) {
  const std::string fault = fault_over_threads(3, [](World& world, Communicator& group) {
    if (world.rank() == 0) {
      std::this_thread::sleep_for(50ms);
      group.abort("the disk is full");
      EXPECT_THROW(group.barrier(), Fault);
    }
    if (world.rank() == 1) group.barrier();
    if (world.rank() == 2) group.batch_isend_irecv({{at::ones({2}), 1, false}});
  });
  EXPECT_EQ(fault, "the disk is full");
  const auto self = self_communicator();
  self->abort("stop");
  EXPECT_THROW(self->barrier(), Fault);
}

TEST(ThreadWorld, RanksUseOneThreadAndTheCallersSettingIsRestored) {
  at::set_num_threads(2);
  run_ranks(2, [](World&) { EXPECT_EQ(at::get_num_threads(), 1); });
  EXPECT_EQ(at::get_num_threads(), 2);
  std::thread([] { EXPECT_EQ(at::get_num_threads(), 2); }).join();
}

TEST(Mesh, CreatesTheGroupsOfEachRank) {
  run_ranks({.tp = 2, .pp = 3, .cp = 1, .ep = 2, .etp = 1, .dp = 2}, [](const Mesh& mesh) {
    const int64_t rank = mesh.rank();
    EXPECT_EQ(mesh.world_size(), 12);
    EXPECT_EQ(mesh.world().size, 12);
    EXPECT_EQ(mesh.world().rank, rank);
    EXPECT_EQ(mesh.group(Axis::tp).rank, rank % 2);
    EXPECT_EQ(mesh.group(Axis::dp).rank, rank / 2 % 2);
    EXPECT_EQ(mesh.group(Axis::pp).rank, rank / 4);
    EXPECT_EQ(mesh.group(Axis::pp).ranks, (std::vector<int64_t>{rank % 4, rank % 4 + 4, rank % 4 + 8}));
    EXPECT_EQ(mesh.group(Axis::ep).rank, rank % 2);
    EXPECT_EQ(mesh.group(Axis::edp).size, 2);
    EXPECT_EQ(mesh.group({Axis::etp, Axis::ep, Axis::pp}).size, 6);
    EXPECT_EQ(mesh.group({Axis::dp, Axis::cp}).ranks, mesh.group(Axis::dp).ranks);
    EXPECT_EQ(mesh.group(Axis::cp).size, 1);
    EXPECT_EQ(mesh.group(Axis::cp).ranks, std::vector<int64_t>{rank});
    EXPECT_EQ(mesh.replicas().ranks, mesh.data_parallel().ranks);
    const bool middle = rank / 4 == 1;
    const Group ends = middle ? mesh.stage_group({1}) : mesh.stage_group({0, 2});
    EXPECT_EQ(ends.ranks, middle ? std::vector{rank} : std::vector<int64_t>({rank % 4, rank % 4 + 8}));
    at::Tensor x = at::ones({1});
    for (const Group& group : {ends, mesh.world(), mesh.group({Axis::tp, Axis::pp})}) {
      group.communicator->all_reduce(x, ReduceOp::avg).wait();
      EXPECT_EQ(group.communicator->size(), group.size);
    }
    EXPECT_EQ(x.item<float>(), 1);
    EXPECT_NE(to_string(mesh).find("12 ranks = tp 2 x cp 1 x dp 2 x pp 3"), std::string::npos);
  });
}

TEST(Mesh, OfOneRankNeedsNoWorld) {
  const Mesh mesh;
  EXPECT_EQ(mesh.rank(), 0);
  EXPECT_EQ(mesh.world_size(), 1);
  EXPECT_EQ(mesh.group({Axis::tp, Axis::cp, Axis::dp, Axis::pp}).size, 1);
  mesh.group({Axis::ep, Axis::etp, Axis::edp}).communicator->barrier();
  mesh.world().communicator->barrier();
  mesh.stage_group({0}).communicator->barrier();
}

TEST(Mesh, RejectsInvalidSizes) {
  const auto nothing = [](const Mesh&) {};
  EXPECT_THROW(run_ranks({.tp = 0}, nothing), UserError);
  EXPECT_THROW(run_ranks({.tp = 2, .ep = 4}, nothing), UserError);
  EXPECT_THROW(run_ranks(3, [](World& world) { Mesh({.tp = 2}, world); }), UserError);
}

}  // namespace
}  // namespace teratron
