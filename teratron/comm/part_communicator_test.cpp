// Failures of collectives that a part of a model called, over threads and sockets.
#include "teratron/comm/part_communicator.h"

#include <mutex>
#include <set>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/comm/mesh/mesh.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using namespace std::chrono_literals;

const std::string layer = "decoder.layers.3.mlp";

Group layer_group(World& world) {
  return named_group({.rank = world.rank(), .size = 2, .ranks = {0, 1}, .communicator = world.group({0, 1})},
                     layer);
}

/// What the ranks of both kinds of world throw.
std::set<std::string> faults(const std::function<void(World&, Communicator&)>& body,
                             std::chrono::milliseconds timeout = 1min) {
  std::set<std::string> all;
  std::mutex mutex;
  const auto job = [&](World& world) {
    const Group group = layer_group(world);
    try {
      body(world, *group.communicator);
    } catch (const Fault& fault) {
      const std::lock_guard lock(mutex);
      all.insert(fault.what());
      throw;
    }
  };
  EXPECT_ANY_THROW(run_ranks(2, job, ThreadOptions{.timeout = timeout}));
  EXPECT_ANY_THROW(run_over_sockets(2, job, timeout));
  return all;
}

TEST(PartCommunicator, ATimeoutNamesOperationPartAndGroupOnAllRanks) {
  const auto all = faults(
      [](World& world, Communicator& group) {
        if (world.rank() == 1) std::this_thread::sleep_for(900ms);
        sum(group, at::ones({2}));
      },
      200ms);
  ASSERT_FALSE(all.empty());
  for (const std::string& fault : all) {
    EXPECT_TRUE(
        fault.starts_with("all_reduce(sum) of decoder.layers.3.mlp fp32 [2] (collective 1 of group [0 "
                          "1]) timed out after 0.2 s: rank 1 "))
        << fault;
    EXPECT_EQ(fault.find(layer), fault.rfind(layer)) << fault;
  }
  const auto messages = faults(
      [](World& world, Communicator& group) {
        if (world.rank() == 1) std::this_thread::sleep_for(900ms);
        if (world.rank() == 0) group.batch_isend_irecv({{at::ones({2}), 1, false}}).wait();
        group.all_gather(at::ones({2}), at::ones({1})).wait();
      },
      200ms);
  for (const std::string& fault : messages) {
    EXPECT_TRUE(
        fault.starts_with("receive message of decoder.layers.3.mlp fp32 [2] from rank 1 in group [0 1] "
                          "timed out"))
        << fault;
  }
}

// Rank 1 says what failed, rank 0 where it was.
TEST(PartCommunicator, AFailureElsewhereIsReportedWithThePart) {
  const auto all = faults([](World& world, Communicator& group) {
    sum(group, at::ones({2}));
    if (world.rank() == 1) throw Fault("the GPU is lost");
    group.all_gather(at::ones({4}), at::ones({2})).wait();
  });
  EXPECT_EQ(all, (std::set<std::string>{"the GPU is lost",
                                        "rank 1 failed: the GPU is lost; rank 0 was in all_gather of "
                                        "decoder.layers.3.mlp in group [0 1]"}));
}

TEST(PartCommunicator, RanksInDifferentPartsDiffer) {
  const auto differ = [](World& world, Communicator& /*group*/) {
    const Group own =
        named_group({.rank = world.rank(), .size = 2, .ranks = {0, 1}, .communicator = world.group({0, 1})},
                    world.rank() == 0 ? "a" : "b");
    sum(*own.communicator, at::ones({2}));
  };
  const std::string expected =
      "the ranks of group [0 1] differ at their collective 1: rank 0: all_reduce(sum) of a fp32 [2]; rank "
      "1: "
      "all_reduce(sum) of b fp32 [2]";
  EXPECT_EQ(fault_over_threads(2, differ), expected);
  EXPECT_EQ(fault_over_sockets(2, differ), expected);
}

TEST(PartCommunicator, OtherCallsOfTheGroupAreNotOfThePart) {
  const auto other = [](World& world, Communicator& group) {
    const Group part = named_group(
        {.rank = world.rank(), .size = 2, .ranks = {0, 1}, .communicator = {std::shared_ptr<void>(), &group}},
        layer);
    const at::Tensor x = at::ones({2});
    sum(*part.communicator, x);
    EXPECT_TRUE(at::equal(x, at::full({2}, 2.0F)));
    if (world.rank() == 0) sum(group, at::ones({3}));
  };
  const std::string expected =
      "all_reduce(sum) fp32 [3] (collective 2 of group [0 1]) cannot complete: rank 1 has ended";
  EXPECT_EQ(fault_over_threads(2, other), expected);
  EXPECT_EQ(fault_over_sockets(2, other), expected);
}

TEST(PartCommunicator, AGroupOfOneRankIsAsItWas) {
  const Group alone;
  EXPECT_EQ(named_group(alone, layer).communicator, alone.communicator);
}

}  // namespace
}  // namespace teratron
