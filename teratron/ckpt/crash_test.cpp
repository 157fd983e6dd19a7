// Faults 2 and 3: kill -9 at every step of saving, committing, hinting and pruning. Whatever the moment, the
// old or the new checkpoint loads completely, and the next save works and sweeps what was left.
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/test_world.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

TestTensors tensors_of(int64_t rank, int64_t ranks) {
  TestTensors tensors;
  tensors.add("a", Shard::cut({4, 6}, 0, ranks, rank));
  tensors.add("b", Shard::replicated({5}));
  return tensors;
}

struct Save {
  int64_t iteration;
  int64_t keep;
  int64_t ranks;
  uint32_t seed;
};

void save(const fs::path& directory, const Save& what) {
  run_peers(what.ranks, [&](Peers& peers) {
    TestTensors own = tensors_of(peers.rank(), what.ranks);
    own.fill(what.seed);
    save_checkpoint(
        {.directory = directory, .iteration = what.iteration, .tensors = own.list(), .keep = what.keep},
        peers);
  });
}

// Which of the seeds was loaded, every element of it; 0 where neither.
uint32_t load(const fs::path& directory, std::initializer_list<uint32_t> seeds) {
  NoPeers alone;
  TestTensors own = tensors_of(0, 1);
  if (!load_checkpoint({.directory = directory, .tensors = own.list()}, alone)) return 0;
  for (const uint32_t seed : seeds) {
    if (own.difference(seed).empty()) return seed;
  }
  return 0;
}

// True if the child was killed, false if it ran to its end.
bool killed_by(const std::string& fault, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    arm_faults(fault);
    body();
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGKILL;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return false;
}

int leftovers(const fs::path& directory) {
  int count = 0;
  for (const std::string& name : list_directory(directory, ExitCode::data)) {
    count += name.starts_with("iter_") && name.find('.') != name.npos ? 1 : 0;
  }
  return count;
}

void sweep(int64_t ranks, int64_t second_iteration) {
  std::vector<std::string> points;
  {
    const TemporaryDirectory directory;
    save(directory.path(), {1, 1, ranks, 10});
    points = record_fault_points([&] { save(directory.path(), {second_iteration, 1, ranks, 20}); });
  }
  EXPECT_GT(points.size(), 12U);
  int kills = 0;
  int survivors = 0;
  for (const std::string& point : points) {
    for (int hit = 1; hit < 40; ++hit) {
      const TemporaryDirectory directory;
      save(directory.path(), {1, 1, ranks, 10});
      const std::string fault = fmt::format("{}@hit={}:kill", point, hit);
      if (!killed_by(fault, [&] { save(directory.path(), {second_iteration, 1, ranks, 20}); })) break;
      ++kills;
      const uint32_t found = load(directory.path(), {10, 20});
      EXPECT_NE(found, 0U) << fault;
      survivors += found == 10 ? 1 : 0;
      save(directory.path(), {9, 1, ranks, 30});
      EXPECT_EQ(load(directory.path(), {30}), 30U) << fault;
      EXPECT_EQ(leftovers(directory.path()), 0) << fault;
    }
  }
  EXPECT_GT(kills, 25);
  EXPECT_GT(survivors, 5) << "kills before the commit must leave the old one";
  EXPECT_LT(survivors, kills) << "kills after the commit must leave the new one";
}

TEST(Crash, fault_03_kill_anywhere_with_one_rank) {
  sweep(1, 2);
}

TEST(Crash, fault_03_kill_anywhere_while_the_same_iteration_is_replaced) {
  sweep(1, 1);
}

TEST(Crash, fault_02_kill_while_ranks_write_their_shards) {
  const TemporaryDirectory directory;
  save(directory.path(), {1, 0, 2, 10});
  for (const char* point :
       {"ckpt.shard_created", "ckpt.shard_block", "ckpt.before_shard_sync", "ckpt.shard_done"}) {
    EXPECT_TRUE(
        killed_by(fmt::format("{}@rank=1:kill", point), [&] { save(directory.path(), {2, 0, 2, 20}); }));
    EXPECT_EQ(load(directory.path(), {10, 20}), 10U) << point;
  }
  EXPECT_EQ(leftovers(directory.path()), 1) << "each save sweeps what the killed one before it left";
  save(directory.path(), {2, 0, 2, 20});
  EXPECT_EQ(load(directory.path(), {20}), 20U);
  EXPECT_EQ(leftovers(directory.path()), 0);
}

}  // namespace
}  // namespace teratron
