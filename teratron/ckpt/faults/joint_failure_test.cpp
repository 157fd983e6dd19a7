// What fails on one rank between the messages of a collective is thrown on all: the others would wait for it
// until a time-out, and with another rank's next message.
#include <atomic>
#include <functional>

#include <gtest/gtest.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/mixed_checkpoints.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

using Collective = std::function<void(HostGroup&)>;

// The ranks of 4 that threw when `point` did on `rank`, for the hit-th time.
int failing_ranks(const std::string& point, int64_t rank, int hit, const Collective& collective) {
  const ScopedFaults faults(fmt::format("{}@rank={},hit={}:throw", point, rank, hit));
  std::atomic<int> failed = 0;
  run_host_group(4, [&](HostGroup& group) {
    set_fault_context(group.rank(), 2);
    const std::string said = message_of<Fault>([&] { collective(group); });
    if (said.find(point) != said.npos) ++failed;
    EXPECT_EQ(group.all_gather_bytes("here").size(), 4U) << "the ranks still agree";
  });
  return failed;
}

// How often `rank` can fail at `point` until the collective succeeds.
int failures(const std::string& point, int64_t rank, const Collective& collective) {
  for (int hit = 1; hit < 20; ++hit) {
    const int failed = failing_ranks(point, rank, hit, collective);
    if (failed == 0) return hit - 1;
    EXPECT_EQ(failed, 4) << point << " on rank " << rank << ", hit " << hit;
  }
  return 20;
}

class JointFailure : public MixedCheckpoints {
 protected:
  // The number of failures of a save, all of which leave the folder as it was.
  int failures_of_save(const std::string& point, int64_t rank, int64_t file_bytes) {
    save(1, 4);
    const auto before = list_directory(directory_.path(), ExitCode::data);
    const int failed = failures(point, rank, [&](HostGroup& group) {
      TestTensors own = tensors(group.rank(), 4);
      own.fill(2);
      if (group.rank() == 0) {
        EXPECT_EQ(list_directory(directory_.path(), ExitCode::data), before);
      }
      save_checkpoint({.directory = directory_.path(),
                       .iteration = 2,
                       .tensors = own.list(),
                       .min_file_bytes = 200,
                       .manifest_file_bytes = file_bytes},
                      group);
    });
    EXPECT_EQ(load(4), 2) << point;
    fs::remove_all(directory_ / "iter_0000002");
    return failed;
  }
};

TEST_F(JointFailure, while_a_save_is_planned) {
  for (const int64_t rank : {0, 2}) EXPECT_EQ(failures_of_save("ckpt.plan", rank, 400), 3);
}

TEST_F(JointFailure, while_a_manifest_is_divided) {
  for (const int64_t file_bytes : {400, 1 << 20}) {
    for (const int64_t rank : {0, 2}) EXPECT_EQ(failures_of_save("ckpt.divide", rank, file_bytes), 2);
  }
}

// Shards, files of the manifest, commit: the last is rank 0's alone.
TEST_F(JointFailure, where_a_save_gets_no_thread) {
  EXPECT_EQ(failures_of_save("ckpt.start_thread", 0, 400), 3);
  EXPECT_EQ(failures_of_save("ckpt.start_thread", 2, 400), 2);
  EXPECT_EQ(failures_of_save("ckpt.start_thread", 0, 1 << 20), 2);
  EXPECT_EQ(failures_of_save("ckpt.start_thread", 2, 1 << 20), 1);
}

TEST_F(JointFailure, while_a_rank_asks_for_its_parts_of_a_manifest_and_answers_others) {
  const fs::path path = save(1, 4);
  for (const int64_t rank : {0, 1}) {
    const int failed = failures("ckpt.load_select", rank, [&](HostGroup& group) {
      TestTensors own = tensors_of_saved(group.rank(), 4);
      load_tensors(path, own.list(), {}, group);
      EXPECT_EQ(own.difference(1), "");
    });
    EXPECT_EQ(failed, 3);
  }
}

TEST_F(JointFailure, while_shards_are_looked_at) {
  const fs::path path = save(1, 4);
  for (const int64_t rank : {0, 3}) {
    const int failed = failures("ckpt.check_sizes", rank, [&](HostGroup& group) {
      EXPECT_EQ(find_checkpoint(directory_.path(), {}, group), path);
    });
    EXPECT_EQ(failed, 2);
  }
}

TEST_F(JointFailure, while_the_tensors_of_all_ranks_are_listed) {
  for (const int64_t rank : {0, 3}) {
    const int failed = failures("ckpt.name_tensors", rank, [&](HostGroup& group) {
      const std::string name = fmt::format("of.{}", group.rank());
      EXPECT_EQ(tensors_of_all_ranks({{name, {Dtype::f32, {2}}}}, group).size(), 4U);
    });
    EXPECT_EQ(failed, 2);
  }
}

TEST(SavePlan, the_tensors_of_all_ranks_are_known_to_all) {
  run_host_group(5, [&](HostGroup& group) {
    std::map<std::string, TensorInfo> mine, expected;
    mine["shared"] = expected["shared"] = {Dtype::f32, {2, 3}};
    for (int64_t rank = 0; rank < 4; ++rank) expected[fmt::format("own.{}", rank)] = {Dtype::bf16, {rank}};
    if (group.rank() < 4) mine[fmt::format("own.{}", group.rank())] = {Dtype::bf16, {group.rank()}};
    EXPECT_EQ(tensors_of_all_ranks(mine, group), expected);
    EXPECT_TRUE(tensors_of_all_ranks({}, group).empty());
  });
}

// The ranks that are responsible for the tensors find it, and tell all.
TEST(SavePlan, an_element_that_no_rank_holds_is_told_by_all) {
  for (const int64_t ranks : {1, 5}) {
    std::atomic<int64_t> told = 0;
    run_host_group(ranks, [&](HostGroup& group) {
      TestTensors tensors;
      for (const char* name : {"a", "b", "c"}) tensors.add_range(name, Shard::replicated({2, 5}), 0, 7);
      const std::string said = message_of<Fault>([&] { plan_save(tensors.list(), group); });
      told += said.find(": no rank holds element 7") != said.npos ? 1 : 0;
      EXPECT_EQ(group.all_gather_bytes("here").size(), static_cast<size_t>(ranks));
    });
    EXPECT_EQ(told, ranks);
  }
}

TEST(SavePlan, ranks_that_disagree_about_a_tensor_are_told_by_all) {
  std::atomic<int> told = 0;
  run_host_group(3, [&](HostGroup& group) {
    TestTensors tensors;
    tensors.add("weight", Shard::replicated({2, 5}), group.rank() == 1 ? Dtype::bf16 : Dtype::f32);
    const std::string said = message_of<Fault>([&] { plan_save(tensors.list(), group); });
    told += said.find("rank 1 has another dtype or shape of weight") != said.npos ? 1 : 0;
  });
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace teratron
