// What a save commits can be loaded, and nothing after the commit makes it fail: old checkpoints are removed
// while the ranks go on.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/ckpt/background_removal.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/mixed_checkpoints.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

class CommittedSave : public MixedCheckpoints {};

// The folder's entries may be stale, the tracker file unwritable, an old checkpoint in use: the save is good.
TEST_F(CommittedSave, nothing_after_the_commit_fails_the_save) {
  save(1, 2, 1);
  for (const char* fault : {"ckpt.after_commit:throw", "ckpt.after_tracker:throw", "ckpt.end:throw",
                            "ckpt.before_prune:throw", "ckpt.pruned:throw"}) {
    const ScopedFaults faults(fault);
    testing::internal::CaptureStderr();
    std::atomic<int> saved = 0;
    run_host_group(2, [&](HostGroup& group) {
      TestTensors own = tensors(group.rank(), 2);
      own.fill(2);
      save_checkpoint({.directory = directory_.path(),
                       .iteration = 2,
                       .tensors = own.list(),
                       .retain = {.last = 1},
                       .manifest_file_bytes = 1},
                      group);
      ++saved;
    });
    EXPECT_EQ(saved, 2) << fault;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("is saved, but updating its folder failed"), std::string::npos) << fault << said;
    EXPECT_GT(verify_checkpoint(directory_ / "iter_0000002"), 0);
    fs::remove_all(directory_ / "iter_0000002");
    save(1, 2, 1);
  }
}

// What a network file system still lists of folders that are gone, and files that go while they are listed.
TEST_F(CommittedSave, stale_entries_of_the_folder_do_not_fail_the_save) {
  fs::create_directory_symlink("gone", directory_ / "iter_0000001");
  fs::create_directory(directory_ / "iter_0000002");
  fs::create_symlink("gone", directory_ / "iter_0000002/manifest.json");
  fs::create_symlink("gone", directory_ / "iter_0000009.partial-0123456789abcdef");
  fs::create_symlink("gone", directory_ / "latest_checkpointed_iteration.txt");
  for (const bool vanishes : {false, true}) {
    // The commit is followed by a pause, in which the entry of a file of the new checkpoint becomes stale.
    const ScopedFaults faults(vanishes ? "ckpt.after_commit@times=1:delay=300" : "");
    std::thread other([&] {
      const fs::path shard = directory_ / "iter_0000003/shard-00001.safetensors";
      while (vanishes && !fs::exists(shard)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (vanishes) fs::remove(shard);
      if (vanishes) fs::remove(shard.parent_path() / "manifest-00000.json");
    });
    std::atomic<int> saved = 0;
    testing::internal::CaptureStderr();
    run_host_group(2, [&](HostGroup& group) {
      TestTensors own = tensors(group.rank(), 2);
      own.fill(2);
      save_checkpoint({.directory = directory_.path(),
                       .iteration = 3,
                       .tensors = own.list(),
                       .retain = {.last = 1},
                       .manifest_file_bytes = 400},
                      group);
      ++saved;
    });
    other.join();
    EXPECT_EQ(saved, 2);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("is saved, but updating its folder failed") != said.npos, vanishes) << said;
    EXPECT_TRUE(vanishes || verify_checkpoint(directory_ / "iter_0000003") > 0);
    fs::remove_all(directory_ / "iter_0000003");
  }
}

// A network file system may show a new folder to other hosts late. The ranks have separate working
// directories, and the second sees the folder after a while.
TEST_F(CommittedSave, a_folder_that_another_host_shows_late_is_waited_for) {
  bool possible = false;
  std::thread([&possible] { possible = ::unshare(CLONE_FS) == 0; }).join();
  if (!possible) GTEST_SKIP() << "threads cannot have separate working directories here";
  const TemporaryDirectory elsewhere;
  const fs::path name = directory_.path().filename();
  std::thread shows([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    fs::create_directory_symlink(directory_.path(), elsewhere / name.string());
  });
  run_host_group(2, [&](HostGroup& group) {
    ::unshare(CLONE_FS);
    fs::current_path(group.rank() == 0 ? directory_.path().parent_path() : elsewhere.path());
    TestTensors own = tensors(group.rank(), 2);
    own.fill(1);
    save_checkpoint({.directory = name, .iteration = 1, .tensors = own.list()}, group);
  });
  shows.join();
  EXPECT_GT(verify_checkpoint(directory_ / "iter_0000001"), 0);
}

// What a load would not read is not committed. One rank finds it, and all refuse.
TEST_F(CommittedSave, a_manifest_is_read_before_it_is_committed) {
  save(1, 2);
  const auto before = list_directory(directory_.path(), ExitCode::data);
  for (const int64_t file_bytes : {1, 1 << 20}) {
    std::atomic<int> refused = 0;
    run_host_group(4, [&](HostGroup& group) {
      TestTensors own;
      own.add("a", Shard::replicated(std::vector<int64_t>(33, 1)));
      own.add("b", Shard::replicated({2}));
      own.fill(2);
      const std::string said = message_of<Fault>([&] {
        save_checkpoint({.directory = directory_.path(),
                         .iteration = 2,
                         .tensors = own.list(),
                         .manifest_file_bytes = file_bytes},
                        group);
      });
      EXPECT_NE(said.find("too many dimensions"), std::string::npos) << said;
      EXPECT_NE(said.find("(rank "), std::string::npos) << said;
      ++refused;
      EXPECT_EQ(group.all_gather_bytes("here").size(), 4U) << "the ranks still agree";
    });
    EXPECT_EQ(refused, 4);
    EXPECT_EQ(list_directory(directory_.path(), ExitCode::data), before);
  }
}

// Early manifests of format 1.0 have no "ranks": each rank wrote one shard then.
TEST_F(CommittedSave, a_manifest_that_does_not_say_how_many_ranks_wrote_it) {
  const fs::path path = save(1, 4, 1 << 20);
  const auto shards = static_cast<int64_t>(read_manifest(path).shards.size());
  json manifest = json::parse(read_text(path / "manifest.json", {}));
  manifest.erase("ranks");
  manifest.erase("hash");
  manifest["hash"] = hash_to_hex(hash_text(manifest.dump()));
  write_text(path / "manifest.json", manifest.dump() + "\n", ExitCode::data);
  EXPECT_EQ(open_checkpoint(path).ranks, shards);
  for (const int64_t ranks : {1, 2, 4}) EXPECT_EQ(load(ranks), 1);
}

// Earlier releases took such a manifest for damaged.
TEST_F(CommittedSave, a_manifest_above_one_gib_is_saved_and_loaded) {
  if (!std::getenv("TERATRON_LONG_TESTS")) GTEST_SKIP() << "needs 9 GB of memory and TERATRON_LONG_TESTS";
  constexpr size_t length = (size_t{1} << 30) + 5;
  SingleHostGroup alone;
  {
    TestTensors own = tensors(0, 1);
    own.fill(1);
    save_checkpoint({.directory = directory_.path(),
                     .iteration = 1,
                     .tensors = own.list(),
                     .state = R"({"long":")" + std::string(length, 'x') + R"("})"},
                    alone);
  }
  ASSERT_GT(fs::file_size(directory_ / "iter_0000001/manifest.json"), length);
  TestTensors own = tensors(0, 1);
  const auto loaded = load_checkpoint({.directory = directory_.path(), .tensors = own.list()}, alone);
  ASSERT_TRUE(loaded);
  EXPECT_GT(loaded->state.size(), length);
  EXPECT_EQ(own.difference(1), "");
  EXPECT_EQ(list_directory(directory_.path(), ExitCode::data).front(), "iter_0000001");
}

// Its end is a hole of the file, whose zeros end the JSON or are refused; its size is not.
TEST_F(CommittedSave, a_manifest_above_one_gib_is_read) {
  const fs::path path = save(1, 1, 1 << 20);
  EXPECT_EQ(open_checkpoint(path).iteration, 1);
  fs::resize_file(path / "manifest.json", (uintmax_t{1} << 30) + 5);
  try {
    EXPECT_EQ(open_checkpoint(path).iteration, 1);
  } catch (const CorruptCheckpoint& error) {
    EXPECT_NE(std::string(error.what()).find("manifest.json:2:1"), std::string::npos) << error.what();
  }
}

class Removal : public MixedCheckpoints {
 protected:
  fs::path folder(const std::string& name, int files) {
    fs::create_directory(directory_ / name);
    for (int i = 0; i < files; ++i) std::ofstream(directory_ / name / fmt::format("file-{}", i)) << i;
    return directory_ / name;
  }
  std::vector<std::string> names() const { return list_directory(directory_.path(), ExitCode::data); }

  // By two ranks; rank 0 removes what is old.
  void save_keeping_one(int64_t iteration, const std::shared_ptr<BackgroundRemoval>& removal) {
    run_host_group(2, [&](HostGroup& group) {
      TestTensors own = tensors(group.rank(), 2);
      own.fill(static_cast<uint32_t>(iteration));
      save_checkpoint({.directory = directory_.path(),
                       .iteration = iteration,
                       .tensors = own.list(),
                       .retain = {.last = 1},
                       .manifest_file_bytes = 1,
                       .removal = removal},
                      group);
    });
  }
};

TEST_F(Removal, removes_folders_and_what_is_chosen_meanwhile) {
  {
    BackgroundRemoval removal;
    removal.add({folder("a", 3), directory_ / "never there"});
    removal.start([this] { return BackgroundRemoval::Folders{folder("b", 2)}; });
    removal.wait_until_chosen();
    removal.add({folder("c", 0)});
    removal.add({});
  }
  EXPECT_EQ(names(), std::vector<std::string>());
  const BackgroundRemoval unused;
}

// A choice goes before entries that wait to be removed: the next commit waits for it.
TEST_F(Removal, a_choice_does_not_wait_for_slow_removals) {
  const ScopedFaults slow("ckpt.removing:delay=50");
  BackgroundRemoval removal;
  removal.add({folder("a", 10)});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  removal.start([] { return BackgroundRemoval::Folders(); });
  removal.wait_until_chosen();
  EXPECT_GT(list_directory(directory_ / "a", ExitCode::data).size(), 5U);
}

TEST_F(Removal, what_is_left_at_the_end_is_told_and_stays) {
  const ScopedFaults slow("ckpt.removing:delay=200");
  const auto begin = Clock::now();
  testing::internal::CaptureStderr();
  {
    BackgroundRemoval removal(std::chrono::milliseconds(50));
    removal.add({folder("a", 100), folder("b", 1)});
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("2 folders of old checkpoints are left for the next save to remove"), said.npos)
      << said;
  EXPECT_EQ(names().size(), 2U);
}

TEST_F(Removal, failures_are_warnings) {
  folder("a", 2);
  folder("b", 2);
  for (const auto& [fault, words] : {std::pair("ckpt.removing@times=1:throw", "cannot remove '"),
                                     {"ckpt.start_removal:throw", "old checkpoints are not removed"}}) {
    const ScopedFaults faults(fault);
    testing::internal::CaptureStderr();
    {
      BackgroundRemoval removal;
      removal.add({directory_ / "a", directory_ / "b"});
      removal.start([] { return BackgroundRemoval::Folders(); });
      removal.wait_until_chosen();
    }
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(words), said.npos) << said;
    EXPECT_TRUE(fs::exists(directory_ / "a"));
  }
  EXPECT_FALSE(fs::exists(directory_ / "b"));
}

TEST_F(Removal, an_entry_that_cannot_be_removed) {
  testing::internal::CaptureStderr();
  {
    BackgroundRemoval().add({folder("b", 1) / "file-0"});
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("b/file-0': "), std::string::npos);
  if (::geteuid() == 0) GTEST_SKIP() << "root may remove anything";
  const fs::path a = folder("a", 1);
  fs::permissions(a, fs::perms::owner_read | fs::perms::owner_exec);
  testing::internal::CaptureStderr();
  {
    BackgroundRemoval().add({a});
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("a': Permission denied"), said.npos) << said;
  fs::permissions(a, fs::perms::owner_all);
}

// Saves return, and further ones commit, while what the first one pruned is still being removed.
TEST_F(Removal, saves_do_not_wait_for_slow_removals) {
  save_keeping_one(1, nullptr);
  const auto files = static_cast<int>(list_directory(directory_ / "iter_0000001", ExitCode::data).size());
  const ScopedFaults slow("ckpt.removing:delay=300");
  const auto begin = Clock::now();
  {
    const auto removal = std::make_shared<BackgroundRemoval>();
    for (const int64_t iteration : {2, 3, 4}) {
      save_keeping_one(iteration, removal);
      EXPECT_EQ(list_checkpoints(directory_.path()).front(), directory_ / iteration_name(iteration));
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(300 * files)) << "the first one's alone";
    removal->wait_until_chosen();
    EXPECT_EQ(list_checkpoints(directory_.path()).size(), 1U);
    EXPECT_GT(names().size(), 2U) << "the files of the others";
    arm_faults("");
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"iter_0000004", "latest_checkpointed_iteration.txt"}));
  EXPECT_GT(verify_checkpoint(directory_ / "iter_0000004"), 0);
}

// Retention by an interval alone removes later checkpoints too; those of a later save are not meant.
TEST_F(Removal, a_choice_of_an_earlier_save_spares_a_later_one) {
  const ScopedFaults slow("ckpt.before_prune:delay=300");
  const auto removal = std::make_shared<BackgroundRemoval>();
  for (const int64_t iteration : {1, 2, 3}) {
    SingleHostGroup alone;
    TestTensors own = tensors(0, 1);
    own.fill(static_cast<uint32_t>(iteration));
    save_checkpoint({.directory = directory_.path(),
                     .iteration = iteration,
                     .tensors = own.list(),
                     .retain = {.interval = 1000},
                     .removal = removal},
                    alone);
    EXPECT_TRUE(fs::exists(directory_ / iteration_name(iteration)));
  }
  removal->wait_until_chosen();
  EXPECT_EQ(list_checkpoints(directory_.path()), (std::vector<fs::path>{directory_ / "iter_0000003"}));
}

// A save waits for them, but not longer than that is of use: what follows may need their space.
TEST_F(Removal, leftovers_of_killed_saves_are_removed_first_if_that_is_fast) {
  const fs::path leftover = folder("iter_0000007.partial-0123456789abcdef", 8);
  {
    const ScopedFaults slow("ckpt.removing:delay=100");
    const auto removal = std::make_shared<BackgroundRemoval>(std::chrono::milliseconds(200));
    save_keeping_one(1, removal);
    EXPECT_TRUE(fs::exists(leftover));
    const auto begin = Clock::now();
    removal->add_and_wait({leftover});  // known
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(150));
  }
  EXPECT_TRUE(fs::exists(leftover));
  const auto removal = std::make_shared<BackgroundRemoval>();
  const ScopedFaults slow("ckpt.removing:delay=20");
  save_keeping_one(2, removal);
  EXPECT_FALSE(fs::exists(leftover));
}

TEST_F(Removal, a_failed_save_is_removed_in_the_background) {
  save_keeping_one(1, nullptr);
  const ScopedFaults faults("ckpt.removing:delay=200;ckpt.before_commit@step=2:throw");
  {
    const auto removal = std::make_shared<BackgroundRemoval>();
    EXPECT_NE(message_of<Fault>([&] { save_keeping_one(2, removal); }), "");
    EXPECT_GT(names().size(), 2U);
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"iter_0000001", "latest_checkpointed_iteration.txt"}));
}

}  // namespace
}  // namespace teratron
