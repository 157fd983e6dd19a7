#include "teratron/ckpt/background_save.h"

#include <thread>

#include <gtest/gtest.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/agree.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

TestTensors tensors_of(const Peers& peers) {
  TestTensors tensors;
  tensors.add("a", Shard::cut({4, 6}, 0, peers.size(), peers.rank()));
  tensors.add("b", Shard::replicated({5}));
  return tensors;
}

std::unique_ptr<BackgroundSave> start(const std::filesystem::path& directory, int64_t iteration,
                                      Peers& peers) {
  const auto tensors = std::make_shared<TestTensors>(tensors_of(peers));
  tensors->fill(static_cast<uint32_t>(iteration));
  return std::make_unique<BackgroundSave>(
      SaveRequest{.directory = directory, .iteration = iteration, .tensors = tensors->list()}, tensors,
      peers);
}

void wait_for(const BackgroundSave& save, int64_t progress) {
  while (save.progress() < progress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void expect_only(const std::filesystem::path& directory, const std::string& checkpoint) {
  EXPECT_EQ(list_directory(directory, ExitCode::data),
            (std::vector<std::string>{checkpoint, "latest_checkpointed_iteration.txt"}));
}

TEST(BackgroundSave, GoesOnWhereAllRanksHaveComeSoFar) {
  const TemporaryDirectory directory;
  run_peers(2, [&](Peers& peers) {
    const auto save = start(directory.path(), 3, peers);
    EXPECT_FALSE(save->advance(0)) << "some rank still writes";
    wait_for(*save, 1);
    EXPECT_FALSE(save->advance(1)) << "now rank 0 commits";
    EXPECT_FALSE(save->advance(1)) << "the others have not heard of that";
    wait_for(*save, 2);
    EXPECT_EQ(save->advance(2), directory / "iter_0000003");
  });
  expect_only(directory.path(), "iter_0000003");
  run_peers(1, [&](Peers& peers) {
    TestTensors loaded = tensors_of(peers);
    load_tensors(directory / "iter_0000003", loaded.list(), {}, peers);
    EXPECT_EQ(loaded.difference(3), "");
  });
}

TEST(BackgroundSave, WritesWhileTheCallerDoesSomethingElse) {
  const TemporaryDirectory directory;
  NoPeers alone;
  const ScopedFaults slow("ckpt.shard_created:delay=200");
  const auto save = start(directory.path(), 1, alone);
  EXPECT_EQ(save->progress(), 0);
  EXPECT_FALSE(std::filesystem::exists(directory / "iter_0000001"));
  EXPECT_EQ(save->finish(), directory / "iter_0000001");
}

TEST(BackgroundSave, FailsOnAllRanksAtTheSamePlace) {
  const TemporaryDirectory directory;
  run_peers(2, [&](Peers& peers) { start(directory.path(), 1, peers)->finish(); });
  for (const char* fault : {"ckpt.shard_done@rank=1,step=2:throw", "ckpt.before_commit@step=2:throw"}) {
    const ScopedFaults faults(fault);
    run_peers(2, [&](Peers& peers) {
      const auto save = start(directory.path(), 2, peers);
      const std::string message = message_of<Fault>([&] { save->finish(); });
      EXPECT_NE(message.find("fault injected"), std::string::npos) << message;
    });
    expect_only(directory.path(), "iter_0000001");
  }
}

TEST(BackgroundSave, LeavesNothingWhenItIsGivenUp) {
  const TemporaryDirectory directory;
  run_peers(2, [&](Peers& peers) {
    start(directory.path(), 1, peers)->finish();
    const auto given_up = start(directory.path(), 2, peers);
    on_every_rank(peers, [&] {
      wait_for(*given_up, 1);  // what a rank writes after rank 0 has cleaned up, the next save removes
      return std::string();
    });
  });
  expect_only(directory.path(), "iter_0000001");
}

}  // namespace
}  // namespace teratron
