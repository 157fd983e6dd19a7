// Faults 2 and 3: kill -9 at every step of saving, committing, tracking and pruning, synchronously and in the
// background. Either the old or the new checkpoint loads completely, and the next save works and removes
// leftovers.
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/async_save.h"
#include "teratron/testing/checkpoint_world.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

TestTensors tensors_of(int64_t rank, int64_t ranks) {
  TestTensors tensors;
  tensors.add("a", Shard::split({4, 6}, 0, ranks, rank));
  tensors.add("b", Shard::replicated({5}));
  return tensors;
}

struct Save {
  int64_t iteration;
  int64_t ranks;
  uint32_t seed;
  bool prune = true;
  bool background = false;
  bool divided = false;  // the manifest, into a file per rank
};

void save(const fs::path& directory, const Save& what) {
  run_host_group(what.ranks, [&](HostGroup& group) {
    const auto own = std::make_shared<TestTensors>(tensors_of(group.rank(), what.ranks));
    own->fill(what.seed);
    const SaveRequest request{.directory = directory,
                              .iteration = what.iteration,
                              .tensors = own->list(),
                              .retain = {.interval = what.prune ? 1000 : 0},
                              .min_file_bytes = 1,
                              .manifest_file_bytes = what.divided ? 1 : int64_t{1} << 20};
    if (!what.background) {
      save_checkpoint(request, group);
    } else {
      AsyncSave(request, own, group).finish();
    }
  });
}

// Which of the seeds was loaded, every element of it; 0 where neither.
uint32_t load(const fs::path& directory, std::initializer_list<uint32_t> seeds) {
  SingleHostGroup alone;
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

void kill_everywhere(const Save& second) {
  std::vector<std::string> points;
  {
    const TemporaryDirectory directory;
    save(directory.path(), {1, second.ranks, 10});
    points = record_fault_points([&] { save(directory.path(), second); });
  }
  EXPECT_GT(points.size(), 12U);
  int kills = 0;
  int survivors = 0;
  for (const std::string& point : points) {
    for (int hit = 1; hit < 40; ++hit) {
      const TemporaryDirectory directory;
      save(directory.path(), {1, second.ranks, 10});
      const std::string fault = fmt::format("{}@hit={}:kill", point, hit);
      if (!killed_by(fault, [&] { save(directory.path(), second); })) break;
      ++kills;
      const uint32_t found = load(directory.path(), {10, 20});
      EXPECT_NE(found, 0U) << fault;
      survivors += found == 10 ? 1 : 0;
      save(directory.path(), {9, second.ranks, 30});
      EXPECT_EQ(load(directory.path(), {30}), 30U) << fault;
      EXPECT_EQ(leftovers(directory.path()), 0) << fault;
    }
  }
  EXPECT_GT(kills, 25);
  EXPECT_GT(survivors, 5) << "kills before the commit must leave the old one";
  EXPECT_LT(survivors, kills) << "kills after the commit must leave the new one";
}

TEST(Crash, fault_03_kill_anywhere_with_one_rank) {
  kill_everywhere({2, 1, 20});
}

TEST(Crash, fault_03_kill_anywhere_in_the_background) {
  kill_everywhere({.iteration = 2, .ranks = 1, .seed = 20, .background = true});
}

TEST(Crash, fault_03_kill_anywhere_while_the_same_iteration_is_replaced) {
  kill_everywhere({1, 1, 20});
}

TEST(Crash, fault_03_kill_anywhere_with_a_divided_manifest) {
  kill_everywhere({.iteration = 2, .ranks = 2, .seed = 20, .divided = true});
}

TEST(Crash, fault_02_kill_while_ranks_write_their_shards) {
  const TemporaryDirectory directory;
  save(directory.path(), {1, 2, 10, false});
  for (const char* point :
       {"ckpt.shard_created", "ckpt.shard_block", "ckpt.before_shard_sync", "ckpt.shard_done"}) {
    for (const bool background : {false, true}) {
      EXPECT_TRUE(killed_by(fmt::format("{}@rank=1:kill", point),
                            [&] { save(directory.path(), {2, 2, 20, false, background}); }));
      EXPECT_EQ(load(directory.path(), {10, 20}), 10U) << point;
    }
  }
  EXPECT_EQ(leftovers(directory.path()), 1) << "each save removes what the killed one before it left";
  save(directory.path(), {2, 2, 20, false});
  EXPECT_EQ(load(directory.path(), {20}), 20U);
  EXPECT_EQ(leftovers(directory.path()), 0);
}

}  // namespace
}  // namespace teratron
