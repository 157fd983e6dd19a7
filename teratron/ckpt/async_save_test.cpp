#include "teratron/ckpt/async_save.h"

#include <thread>

#include <gtest/gtest.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

TestTensors tensors_of(const HostGroup& group) {
  TestTensors tensors;
  tensors.add("a", Shard::split({4, 6}, 0, group.size(), group.rank()));
  tensors.add("b", Shard::replicated({5}));
  return tensors;
}

std::unique_ptr<AsyncSave> start(const std::filesystem::path& directory, int64_t iteration,
                                 HostGroup& group) {
  const auto tensors = std::make_shared<TestTensors>(tensors_of(group));
  tensors->fill(static_cast<uint32_t>(iteration));
  return std::make_unique<AsyncSave>(
      SaveRequest{.directory = directory, .iteration = iteration, .tensors = tensors->list()}, tensors,
      group);
}

void wait_for(const AsyncSave& save, int64_t progress) {
  while (save.progress() < progress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void expect_only(const std::filesystem::path& directory, const std::string& checkpoint) {
  EXPECT_EQ(list_directory(directory, ExitCode::data),
            (std::vector<std::string>{checkpoint, "latest_checkpointed_iteration.txt"}));
}

TEST(AsyncSave, AdvancesWhenAllRanksHaveFinishedAStage) {
  const TemporaryDirectory directory;
  run_host_group(2, [&](HostGroup& group) {
    const auto save = start(directory.path(), 3, group);
    EXPECT_FALSE(save->advance(0)) << "a rank still writes";
    wait_for(*save, 1);
    EXPECT_FALSE(save->advance(1)) << "now rank 0 commits";
    EXPECT_FALSE(save->advance(1)) << "no rank has finished the commit";
    wait_for(*save, 2);
    EXPECT_EQ(save->advance(2).value().path, directory / "iter_0000003");
  });
  expect_only(directory.path(), "iter_0000003");
  run_host_group(1, [&](HostGroup& group) {
    TestTensors loaded = tensors_of(group);
    load_tensors(directory / "iter_0000003", loaded.list(), {}, group);
    EXPECT_EQ(loaded.difference(3), "");
  });
}

TEST(AsyncSave, WritesWhileTheCallerContinues) {
  const TemporaryDirectory directory;
  SingleHostGroup alone;
  const ScopedFaults slow("ckpt.shard_created:delay=200");
  const auto save = start(directory.path(), 1, alone);
  EXPECT_EQ(save->progress(), 0);
  EXPECT_FALSE(std::filesystem::exists(directory / "iter_0000001"));
  EXPECT_EQ(save->finish().path, directory / "iter_0000001");
}

TEST(AsyncSave, FailsOnAllRanksAtTheSamePlace) {
  const TemporaryDirectory directory;
  run_host_group(2, [&](HostGroup& group) { start(directory.path(), 1, group)->finish(); });
  for (const char* fault : {"ckpt.shard_done@rank=1,step=2:throw", "ckpt.before_commit@step=2:throw"}) {
    const ScopedFaults faults(fault);
    run_host_group(2, [&](HostGroup& group) {
      const auto save = start(directory.path(), 2, group);
      const std::string message = message_of<Fault>([&] { save->finish(); });
      EXPECT_NE(message.find("fault injected"), std::string::npos) << message;
    });
    expect_only(directory.path(), "iter_0000001");
  }
}

TEST(AsyncSave, LeavesNothingWhenDestroyed) {
  const TemporaryDirectory directory;
  run_host_group(2, [&](HostGroup& group) {
    start(directory.path(), 1, group)->finish();
    const auto unfinished = start(directory.path(), 2, group);
    run_on_all_ranks(group, [&] {
      wait_for(*unfinished, 1);  // the next save removes what a rank writes after rank 0 has cleaned up
      return std::string();
    });
  });
  expect_only(directory.path(), "iter_0000001");
}

}  // namespace
}  // namespace teratron
