// Faults 8 to 14 and 19 of the table of faults: damage, full disks, foreign files.
#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/nodes/node_folders.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

class CheckpointFault : public testing::Test {
 protected:
  static TestTensors tensors(int64_t rank, int64_t ranks) {
    TestTensors tensors;
    tensors.add("a", Shard::split({8, 16}, 0, ranks, rank));
    tensors.add("b", Shard::split({4, 8}, 1, ranks, rank));
    return tensors;
  }

  void save(int64_t iteration, int64_t ranks = 1) {
    run_host_group(ranks, [&](HostGroup& group) {
      TestTensors own = tensors(group.rank(), ranks);
      own.fill(static_cast<uint32_t>(iteration));
      save_checkpoint({.directory = directory_.path(), .iteration = iteration, .tensors = own.list()}, group);
    });
  }

  // The iteration that was loaded, after checking every element; -1 where there is none.
  int64_t load(int64_t ranks = 1, std::optional<int64_t> iteration = {}, int max_corrupt = 3) {
    std::atomic<int64_t> loaded = -1;
    run_host_group(ranks, [&](HostGroup& group) {
      TestTensors own = tensors(group.rank(), ranks);
      const auto info = load_checkpoint({.directory = directory_.path(),
                                         .iteration = iteration,
                                         .tensors = own.list(),
                                         .max_corrupt = max_corrupt},
                                        group);
      if (!info) return;
      EXPECT_EQ(own.difference(static_cast<uint32_t>(info->iteration)), "");
      loaded = info->iteration;
    });
    return loaded;
  }

  fs::path shard(int64_t iteration, int rank = 0) const {
    return directory_ / fmt::format("iter_{:07d}", iteration) / fmt::format("shard-{:05d}.safetensors", rank);
  }

  static void flip(const fs::path& path, int64_t byte) {
    ASSERT_LT(byte, static_cast<int64_t>(fs::file_size(path)));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(byte);
    const char value = static_cast<char>(file.get() ^ 4);
    file.seekp(byte);
    file.put(value);
  }

  std::string explicit_error(int64_t iteration, int64_t ranks = 1) {
    return message_of<CorruptCheckpoint>([&] { load(ranks, iteration); });
  }

  std::vector<std::string> names() const { return list_directory(directory_.path(), ExitCode::data); }

  TemporaryDirectory directory_;
};

TEST_F(CheckpointFault, fault_08_full_disk_leaves_nothing_of_the_attempt) {
  save(1, 2);
  const auto before = names();
  for (const char* where : {"file.write@rank=1:errno=ENOSPC", "file.write@rank=0,hit=4:errno=EDQUOT",
                            "file.sync@rank=0,hit=1:errno=ENOSPC", "file.open@rank=1:errno=ENOSPC"}) {
    const ScopedFaults faults(where);
    try {
      save(2, 2);
      ADD_FAILURE() << where;
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.exit_code(), ExitCode::checkpoint) << where;
      EXPECT_NE(std::string(fault.what()).find("iter_0000002"), std::string::npos) << fault.what();
    }
    EXPECT_EQ(names(), before) << where;
    EXPECT_EQ(load(), 1);
  }
  save(2, 2);
  EXPECT_EQ(load(), 2) << "the next save works once there is room";
}

TEST_F(CheckpointFault, fault_08_a_real_file_size_limit) {
  save(1);
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{300, 300};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 0;
    try {
      save(2);
    } catch (const IoFault& fault) {
      code = 100;
    } catch (const Fault& fault) {
      code = static_cast<int>(fault.exit_code());
    }
    std::_Exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::checkpoint));
  EXPECT_EQ(names(), (std::vector<std::string>{"iter_0000001", "latest_checkpointed_iteration.txt"}));
  EXPECT_EQ(load(), 1);
}

TEST_F(CheckpointFault, fault_09_bad_save_directories_are_found_before_anything_else) {
  SingleHostGroup alone;
  check_save_directory(directory_ / "made" / "on the way", alone);
  EXPECT_TRUE(fs::is_directory(directory_ / "made" / "on the way"));
  EXPECT_TRUE(fs::is_empty(directory_ / "made" / "on the way"));
  const fs::path left = directory_ / "made" / ".teratron-probe-0123";  // by a start that was killed
  write_text(left, "", ExitCode::config);
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(2));
  check_save_directory(directory_ / "made", alone);
  EXPECT_FALSE(fs::exists(left));
  const auto error_of = [&](const char* faults_text, const fs::path& path) {
    const ScopedFaults faults(faults_text);
    try {
      run_host_group(2, [&](HostGroup& group) { check_save_directory(path, group); });
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      return std::string(error.what());
    }
    return std::string();
  };
  write_text(directory_ / "file", "x", ExitCode::data);
  EXPECT_NE(error_of("", directory_ / "file").find("Not a directory"), std::string::npos);
  EXPECT_NE(error_of("file.open:errno=EROFS", directory_.path()).find("Read-only file system"),
            std::string::npos);
  EXPECT_NE(error_of("file.open:errno=EACCES", directory_.path()).find("Permission denied"),
            std::string::npos);
  EXPECT_NE(error_of("file.write:errno=ENOSPC", directory_.path()).find("No space left"), std::string::npos);
}

// As on two nodes without a shared file system, where one cannot write.
TEST_F(CheckpointFault, fault_09_a_directory_of_one_node) {
  write_text(directory_ / "node1", "x", ExitCode::data);
  const auto check = [&] {
    run_host_group(2, [&](HostGroup& group) {
      check_save_directory(directory_ / fmt::format("node{}", group.rank()), group);
    });
  };
  const std::string error = message_of<UserError>(check);
  EXPECT_NE(error.find("Not a directory"), std::string::npos) << error;
  EXPECT_NE(error.find("(rank 1)"), std::string::npos) << error;
  EXPECT_TRUE(fs::is_empty(directory_ / "node0"));
}

// The ranks are threads with separate working directories.
TEST_F(CheckpointFault, fault_09_a_checkpoint_that_is_not_shared) {
  bool possible = false;
  std::thread([&possible] { possible = ::unshare(CLONE_FS) == 0; }).join();
  if (!possible) GTEST_SKIP() << "threads cannot have separate working directories here";
  save(1, 2);
  const auto before = names();
  const TemporaryDirectory elsewhere;
  const fs::path name = directory_.path().filename();
  int64_t sees = 0;  // the rank
  const auto error_of = [&](const std::function<void(HostGroup&)>& body) {
    try {
      run_host_group(2, [&](HostGroup& group) {
        ::unshare(CLONE_FS);
        fs::current_path(group.rank() == sees ? directory_.path().parent_path() : elsewhere.path());
        body(group);
      });
    } catch (const CorruptCheckpoint& error) {
      ADD_FAILURE() << error.what();
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto load_there = [&](HostGroup& group) {
    TestTensors own = tensors(group.rank(), 2);
    load_checkpoint({.directory = name, .tensors = own.list()}, group);
    EXPECT_EQ(own.difference(1), "") << "rank 0 has sent it";
  };
  const auto find_there = [&](HostGroup& group) { find_checkpoint(name, {}, group); };
  for (const char* made : {"nothing", "", "iter_0000001"}) {
    if (made != std::string("nothing")) fs::create_directories(elsewhere / name.string() / made);
    EXPECT_EQ(error_of(load_there), "") << made;
    EXPECT_EQ(error_of(find_there), "") << made;
  }
  sees = 1;
  fs::remove_all(elsewhere / name.string());
  for (const auto& body : {std::function(load_there), std::function(find_there)}) {
    EXPECT_NE(error_of(body).find("there are checkpoints here that rank 0 does not see (rank 1)"),
              std::string::npos);
  }
  EXPECT_EQ(names(), before) << "nothing is set aside";
  EXPECT_EQ(load(2), 1);
}

TEST_F(CheckpointFault, fault_10_transient_errors_while_saving_and_loading) {
  const ScopedFaults faults(
      "file.write@times=2:errno=EIO;file.read@times=2:errno=ESTALE;file.rename@times=1:errno=EIO");
  save(1);
  EXPECT_EQ(load(), 1);
}

// Whatever the file system refuses, and wherever, every rank comes to the same end.
TEST_F(CheckpointFault, fault_10_every_refusal_fails_the_save_on_every_rank) {
  save(1, 2);
  const auto before = names();
  for (const char* name : {"EIO", "ESTALE", "EROFS", "EACCES", "EPERM", "ENOENT", "EDQUOT"}) {
    for (const char* point :
         {"file.write@rank=1", "file.open@rank=1", "file.sync@rank=1", "file.rename@rank=0"}) {
      const std::string specification = fmt::format("{}:errno={}", point, name);
      const ScopedFaults faults(specification);
      std::atomic<int> failed = 0;
      run_host_group(2, [&](HostGroup& group) {
        TestTensors own = tensors(group.rank(), 2);
        try {
          save_checkpoint({.directory = directory_.path(), .iteration = 2, .tensors = own.list()}, group);
        } catch (const Fault& fault) {
          EXPECT_EQ(fault.exit_code(), ExitCode::checkpoint) << specification;
          const bool names_rank = std::string(fault.what()).find("(rank 1)") != std::string::npos;
          EXPECT_EQ(names_rank, std::string(point).ends_with("rank=1")) << fault.what();
          ++failed;
        }
      });
      EXPECT_EQ(failed, 2) << specification;
      EXPECT_EQ(names(), before) << specification;
    }
  }
  EXPECT_EQ(load(), 1);
}

// One of the files that a rank writes at once.
TEST_F(CheckpointFault, fault_08_full_disk_in_one_of_several_files) {
  save(1, 2);
  const auto before = names();
  for (const char* where : {"file.write@rank=1,hit=3:errno=ENOSPC", "file.sync@rank=0,hit=2:errno=EIO",
                            "file.open@rank=1,hit=2:errno=ENOSPC", "ckpt.shard_block@rank=0,hit=2:throw"}) {
    const ScopedFaults faults(where);
    std::atomic<int> failed = 0;
    run_host_group(2, [&](HostGroup& group) {
      TestTensors own = tensors(group.rank(), 2);
      const SaveRequest request{
          .directory = directory_.path(), .iteration = 2, .tensors = own.list(), .min_file_bytes = 1};
      const std::string message = message_of<Fault>([&] { save_checkpoint(request, group); });
      EXPECT_EQ(message.find("another file"), std::string::npos) << message;
      failed += message.empty() ? 0 : 1;
    });
    EXPECT_EQ(failed, 2) << where;
    EXPECT_EQ(names(), before) << where;
  }
}

TEST_F(CheckpointFault, a_tracker_file_that_is_garbage_is_ignored) {
  save(1);
  save(2);
  const fs::path tracker = directory_ / "latest_checkpointed_iteration.txt";
  const auto check = [&](const char* what) {
    EXPECT_EQ(load(), 2) << what;
    testing::internal::CaptureStderr();
    save(3);  // cannot replace a folder, and says so
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(load(), 3) << what;
    fs::remove_all(tracker);
    fs::remove_all(directory_ / "iter_0000003");
  };
  write_text(tracker, std::string(5000, '1'), ExitCode::data);
  check("too long");
  fs::create_directory(tracker);
  check("a folder");
  ASSERT_EQ(::mkfifo(tracker.c_str(), 0600), 0);
  check("a pipe");
}

TEST_F(CheckpointFault, fault_11_truncated_shard) {
  save(1);
  save(2);
  const auto size = fs::file_size(shard(2));
  fs::resize_file(shard(2), size - 1);
  const std::string text = explicit_error(2);
  EXPECT_NE(text.find(shard(2).string()), std::string::npos) << text;
  EXPECT_NE(text.find(fmt::format("has {} bytes, but {} in the manifest", size - 1, size)), std::string::npos)
      << text;
  EXPECT_TRUE(fs::exists(directory_ / "iter_0000002")) << "an explicit iteration is not put aside";
  testing::internal::CaptureStderr();
  EXPECT_EQ(load(), 1);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("warning: checkpoint"), std::string::npos);
  EXPECT_NE(said.find("iter_0000002.bad"), std::string::npos) << said;
}

TEST_F(CheckpointFault, fault_12_one_flipped_bit) {
  save(1, 2);
  save(2, 2);
  flip(shard(2, 1), static_cast<int64_t>(fs::file_size(shard(2, 1))) - 5);
  const std::string text = explicit_error(2, 2);
  EXPECT_NE(text.find("tensor \"b\": bytes"), std::string::npos) << text;
  EXPECT_NE(text.find(shard(2, 1).string()), std::string::npos) << text;
  const std::string verified =
      message_of<CorruptCheckpoint>([&] { verify_checkpoint(directory_ / "iter_0000002"); });
  EXPECT_NE(verified.find("tensor \"b\""), std::string::npos) << verified;
  EXPECT_EQ(load(1), 1);
}

// Every byte of a small checkpoint: a flip is found or does not matter.
TEST_F(CheckpointFault, fault_12_every_byte_of_every_file) {
  save(1);
  const fs::path checkpoint = directory_ / "iter_0000001";
  for (const fs::path& path : {shard(1), checkpoint / "manifest.json"}) {
    const auto size = static_cast<int64_t>(fs::file_size(path));
    for (int64_t byte = 0; byte < size; ++byte) {
      flip(path, byte);
      EXPECT_NE(message_of<UserError>([&] { load(1, 1); }), "") << path << " byte " << byte;
      flip(path, byte);
    }
  }
  EXPECT_EQ(load(1, 1), 1);
}

TEST_F(CheckpointFault, fault_11_every_prefix_of_the_manifest) {
  save(1);
  const fs::path path = directory_ / "iter_0000001" / "manifest.json";
  const std::string whole = read_text(path, {});
  for (size_t length = 0; length + 1 < whole.size(); length += 7) {
    write_text(path, whole.substr(0, length), ExitCode::data);
    EXPECT_NE(explicit_error(1), "") << length;
  }
}

TEST_F(CheckpointFault, fault_13_missing_and_mixed_up_shards_are_all_listed) {
  save(1, 4);
  save(2, 4);
  fs::remove(shard(2, 0));
  fs::resize_file(shard(2, 2), 10);
  std::string text = explicit_error(2);
  EXPECT_NE(text.find(shard(2, 0).string() + ": the shard is missing"), std::string::npos) << text;
  EXPECT_NE(text.find(shard(2, 2).string() + ": the shard has 10 bytes"), std::string::npos) << text;
  save(3, 4);
  save(4, 4);
  fs::copy_file(shard(3, 1), shard(4, 1), fs::copy_options::overwrite_existing);
  text = explicit_error(4);
  EXPECT_NE(text.find("it belongs to save"), std::string::npos) << text;
  EXPECT_NE(text.find("of iteration 3, the manifest to save"), std::string::npos) << text;
}

TEST_F(CheckpointFault, fault_14_bad_checkpoints_do_not_end_in_an_endless_restart) {
  for (int64_t iteration = 1; iteration <= 4; ++iteration) save(iteration);
  for (int64_t iteration = 2; iteration <= 4; ++iteration) flip(shard(iteration), 700);
  // Only reading finds the damage. Loading throws after two, which are both renamed.
  const std::string text = message_of<CorruptCheckpoint>([&] { load(2, {}, 2); });
  EXPECT_NE(text.find("2 checkpoints in a row are corrupt; giving up"), std::string::npos) << text;
  EXPECT_EQ(load(2, {}, 2), 1) << "a restart continues where the last try ended";
  EXPECT_EQ(names(), (std::vector<std::string>{"iter_0000001", "iter_0000002.bad", "iter_0000003.bad",
                                               "iter_0000004.bad", "latest_checkpointed_iteration.txt"}));
  flip(shard(1), 700);
  EXPECT_THROW(load(), CorruptCheckpoint);
  const std::string lost = message_of<UserError>([&] { load(); });
  EXPECT_NE(lost.find("no valid one is left"), std::string::npos)
      << "progress is never lost in silence: " << lost;
}

TEST_F(CheckpointFault, fault_19_pickled_checkpoints_are_refused) {
  const fs::path rank = directory_ / "iter_0000100" / "mp_rank_00";
  fs::create_directories(rank);
  write_text(rank / "model_optim_rng.pt", "PK", ExitCode::data);
  write_text(directory_ / "latest_checkpointed_iteration.txt", "100", ExitCode::data);
  SingleHostGroup alone;
  for (const std::optional<int64_t> iteration : {std::optional<int64_t>(), std::optional<int64_t>(100)}) {
    const std::string text =
        message_of<UserError>([&] { find_checkpoint(directory_.path(), iteration, alone); });
    EXPECT_NE(text.find("model_optim_rng.pt: this is a pickled PyTorch file"), std::string::npos) << text;
    EXPECT_NE(text.find("teratron ckpt convert"), std::string::npos) << text;
  }
  fs::remove_all(directory_ / "iter_0000100");
  fs::create_directories(directory_ / "iter_0000200");
  write_text(directory_ / "iter_0000200" / "__0_0.distcp", "x", ExitCode::data);
  EXPECT_NE(message_of<UserError>([&] { load(); }).find(".distcp: this is a pickled"), std::string::npos);
}

}  // namespace
}  // namespace teratron
