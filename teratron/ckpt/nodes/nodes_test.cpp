// Nodes without a shared disk: ranks with folders of their node. What is loaded equals what was saved, in any
// layout; a node that ends in the middle of a save leaves one checkpoint whole on all.
#include <atomic>
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/async_save.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/nodes/node_folders.h"
#include "teratron/ckpt/nodes/peer_shards.h"
#include "teratron/ckpt/nodes/saved_nodes.h"
#include "teratron/testing/checkpoint_world.h"
#include "teratron/testing/mixed_checkpoints.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

class Nodes : public MixedCheckpoints {
 protected:
  // Ranks 0 and 1 have folder a, ranks 2 and 3 b, and so on.
  fs::path folder(int64_t rank) const { return directory_ / std::string(1, "abcd"[rank / 2]); }

  struct Save {
    int64_t iteration = 1;
    int64_t ranks = 4;
    Retention retain = {};
    bool background = false;
  };

  void save_on_nodes(const Save& what) const {
    run_host_group(what.ranks, [&](HostGroup& group) {
      const auto own = std::make_shared<TestTensors>(tensors(group.rank(), what.ranks));
      own->fill(static_cast<uint32_t>(what.iteration));
      const fs::path here = folder(group.rank());
      const auto nodes = std::make_shared<const NodeFolders>(check_save_directory(here, group));
      const SaveRequest request{.directory = here,
                                .iteration = what.iteration,
                                .tensors = own->list(),
                                .config = R"({"hidden_size":6})",
                                .retain = what.retain,
                                .min_file_bytes = 200,
                                .manifest_file_bytes = 400,
                                .nodes = nodes};
      if (what.background) {
        AsyncSave(request, own, group).finish();
      } else {
        save_checkpoint(request, group);
      }
    });
  }

  // The iteration that ranks with these folders have loaded, every element of it; 0: none.
  int64_t load_from(const std::vector<fs::path>& folders, std::optional<int64_t> iteration = {}) const {
    std::atomic<int64_t> loaded = 0;
    const auto ranks = static_cast<int64_t>(folders.size());
    run_host_group(ranks, [&](HostGroup& group) {
      TestTensors own = tensors_of_saved(group.rank(), ranks);
      const auto info = load_checkpoint(
          {.directory = folders[group.rank()], .iteration = iteration, .tensors = own.list()}, group);
      if (!info) return;
      EXPECT_EQ(own.difference(static_cast<uint32_t>(info->iteration)), "");
      loaded = info->iteration;
    });
    return loaded;
  }

  std::vector<fs::path> folders_of(int64_t ranks) const {
    std::vector<fs::path> folders;
    for (int64_t rank = 0; rank < ranks; ++rank) folders.push_back(folder(rank));
    return folders;
  }

  template <typename Error = UserError>
  std::string error_of_load(const std::vector<fs::path>& folders,
                            std::optional<int64_t> iteration = {}) const {
    try {
      load_from(folders, iteration);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
      return error.what();
    }
    return "";
  }
};

std::vector<std::string> shards_in(const fs::path& checkpoint) {
  std::vector<std::string> names = list_directory(checkpoint, ExitCode::data);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("shard-"); });
  return names;
}

TEST_F(Nodes, ranks_find_out_who_shares_their_folder) {
  run_host_group(5, [&](HostGroup& group) {
    const NodeFolders found = check_save_directory(folder(group.rank()), group);
    ASSERT_EQ(found.nodes.size(), 3U);
    EXPECT_EQ(found.nodes[1].ranks, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(found.mine, group.rank() / 2);
    EXPECT_EQ(found.leads(group.rank()), group.rank() % 2 == 0);
    EXPECT_NE(describe(found).find("node 1 (ranks 2, 3 on "), std::string::npos) << describe(found);
    EXPECT_NE(describe(found).find(folder(2).string()), std::string::npos);
  });
  fs::create_directory_symlink(folder(0), directory_ / "other name");
  run_host_group(4, [&](HostGroup& group) {
    const fs::path path = group.rank() % 2 == 0 ? folder(0) : directory_ / "other name";
    EXPECT_TRUE(check_save_directory(path, group).is_shared());
  });
  EXPECT_TRUE(fs::is_empty(folder(0))) << "nothing is left of it";
  EXPECT_TRUE(fs::is_empty(folder(2)));
}

TEST_F(Nodes, each_node_keeps_its_shards_and_all_hold_the_manifest) {
  save_on_nodes({});
  const auto text = [&](int64_t rank) {
    return read_text(folder(rank) / "iter_0000001/manifest.json", {.kind = ExitCode::data});
  };
  EXPECT_EQ(text(0), text(2));
  for (const int64_t rank : {0, 2}) {
    const std::vector<std::string> names = shards_in(folder(rank) / "iter_0000001");
    EXPECT_GT(names.size(), 1U);
    for (const std::string& name : names) {
      EXPECT_TRUE(name.starts_with(fmt::format("shard-0000{}", rank)) ||
                  name.starts_with(fmt::format("shard-0000{}", rank + 1)))
          << name;
    }
    EXPECT_EQ(read_text(folder(rank) / "latest_checkpointed_iteration.txt", {}), "1");
  }
  const CheckpointInfo info = open_checkpoint(folder(2) / "iter_0000001");
  ASSERT_EQ(info.nodes.size(), 2U);
  EXPECT_EQ(info.nodes[1].ranks, (std::vector<int64_t>{2, 3}));
}

TEST_F(Nodes, any_layout_loads_what_its_nodes_have_between_them) {
  save_on_nodes({});
  for (const int64_t ranks : {4, 3, 8}) {
    std::vector<fs::path> folders = folders_of(ranks);
    EXPECT_EQ(load_from(folders), 1) << ranks;  // of 8, nodes 2 and 3 have no folder
  }
  const fs::path a = folder(0), b = folder(2);
  EXPECT_EQ(load_from({a, b}), 1);
  EXPECT_EQ(load_from({b, a, a}), 1) << "the nodes in another order";
  EXPECT_EQ(load_from({a / "iter_0000001", b / "iter_0000001"}), 1) << "the checkpoints themselves";
  fs::copy(b / "iter_0000001", a / "iter_0000001",
           fs::copy_options::recursive | fs::copy_options::skip_existing);
  EXPECT_EQ(load_from({a}), 1) << "all shards gathered in one folder";
  EXPECT_EQ(load_from({a, directory_ / "nothing"}), 1);
}

TEST_F(Nodes, what_one_machine_saved_is_sent_to_those_without_its_folder) {
  for (const int64_t file_bytes : {400, 1 << 20}) {  // a manifest of several files, and of one
    save(1, 4, file_bytes);
    EXPECT_EQ(load_from({directory_.path(), directory_ / "nothing", directory_.path()}), 1);
    fs::remove_all(directory_ / "iter_0000001");
  }
}

TEST_F(Nodes, a_lost_folder_is_named_with_its_node_and_nothing_is_renamed) {
  save_on_nodes({.iteration = 1});
  save_on_nodes({.iteration = 2});
  fs::remove_all(folder(2));
  const std::string error = error_of_load<MissingShards>(folders_of(4));
  EXPECT_NE(error.find("the shards of node 1 (ranks 2, 3 on "), std::string::npos) << error;
  EXPECT_NE(error.find("iter_0000002"), std::string::npos) << error;
  EXPECT_TRUE(fs::exists(folder(0) / "iter_0000002/manifest.json"));
  // The other way round: rank 0's.
  save_on_nodes({.iteration = 3});
  fs::remove_all(folder(0));
  EXPECT_NE(error_of_load(folders_of(4)).find("the folder of node 0 (ranks 0, 1 on "), std::string::npos);
  EXPECT_TRUE(fs::exists(folder(2) / "iter_0000003/manifest.json"));
}

TEST_F(Nodes, an_incomplete_checkpoint_leaves_the_one_before) {
  save_on_nodes({.iteration = 1});
  save_on_nodes({.iteration = 2});
  fs::remove_all(folder(2) / "iter_0000002");
  EXPECT_EQ(load_from(folders_of(4)), 1);
  EXPECT_TRUE(fs::exists(folder(0) / "iter_0000002/manifest.json")) << "it may come back";
  EXPECT_NE(error_of_load(folders_of(4), 2).find("node 1"), std::string::npos);
  // Another save of the same iteration is not the one that is missing.
  const TemporaryDirectory other;
  fs::rename(folder(0), other / "a");
  fs::rename(folder(2), other / "b");
  save_on_nodes({.iteration = 2});
  EXPECT_NE(error_of_load({other / "a", folder(2)}, 2).find("node 1"), std::string::npos);
}

TEST_F(Nodes, damage_is_found_through_peers_and_set_aside_on_all_nodes) {
  save_on_nodes({.iteration = 1});
  save_on_nodes({.iteration = 2});
  const fs::path shard = folder(2) / "iter_0000002" / shards_in(folder(2) / "iter_0000002").front();
  std::string bytes = read_text(shard, {.kind = ExitCode::data});
  bytes.back() ^= 1;
  write_text(shard, bytes, ExitCode::data);
  const fs::path a = folder(0), b = folder(2);
  run_host_group(2, [&](HostGroup& group) {
    TestTensors own = tensors_of_saved(group.rank(), 2);
    const fs::path& here = group.rank() == 0 ? a : b;
    const auto nodes = std::make_shared<const NodeFolders>(check_save_directory(here, group));
    const auto info = load_checkpoint({.directory = here, .tensors = own.list(), .nodes = nodes}, group);
    EXPECT_EQ(info->iteration, 1);
    EXPECT_EQ(own.difference(1), "");
  });
  EXPECT_TRUE(fs::exists(a / "iter_0000002.bad"));
  EXPECT_TRUE(fs::exists(b / "iter_0000002.bad"));
}

TEST_F(Nodes, old_checkpoints_are_pruned_and_put_aside_on_all_nodes) {
  for (int64_t iteration = 1; iteration <= 3; ++iteration)
    save_on_nodes({.iteration = iteration, .retain = {.last = 2}, .background = iteration == 2});
  for (const int64_t rank : {0, 2}) {
    EXPECT_FALSE(fs::exists(folder(rank) / "iter_0000001"));
    EXPECT_TRUE(fs::exists(folder(rank) / "iter_0000002"));
  }
  EXPECT_EQ(load_from(folders_of(4)), 3);
  run_host_group(4, [&](HostGroup& group) {
    const NodeFolders nodes = check_save_directory(folder(group.rank()), group);
    archive_checkpoints(folder(group.rank()), &nodes, group);
  });
  for (const int64_t rank : {0, 2}) EXPECT_TRUE(fs::exists(folder(rank) / "replaced-1/iter_0000003"));
  EXPECT_EQ(load_from(folders_of(4)), 0);
}

TEST_F(Nodes, tools_say_whose_shards_a_folder_has) {
  save_on_nodes({});
  const fs::path checkpoint = folder(2) / "iter_0000001";
  EXPECT_GT(verify_checkpoint(checkpoint), 0);
  EXPECT_LT(verify_checkpoint(checkpoint), open_checkpoint(checkpoint).bytes);
  const std::vector<std::string> lines = describe_shards_here(checkpoint);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[0].starts_with("node 0 (ranks 0, 1 on ")) << lines[0];
  EXPECT_NE(lines[0].find("are not here"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find(" shards here"), std::string::npos) << lines[1];
  EXPECT_NE(message_of<UserError>([&] { CheckpointReader reader(checkpoint); }).find("node 0"),
            std::string::npos);
  fs::remove(checkpoint / shards_in(checkpoint).front());
  EXPECT_NE(message_of<CorruptCheckpoint>([&] { verify_checkpoint(checkpoint); }), "");
}

TEST_F(Nodes, rank_0_reads_all_of_it_while_the_others_answer) {
  save_on_nodes({});
  run_host_group(4, [&](HostGroup& group) {
    const fs::path checkpoint = folder(group.rank()) / "iter_0000001";
    int used = 0;
    use_on_rank_0(checkpoint, group, [&](const Manifest& manifest, const RemoteShards& remote) {
      const CheckpointReader reader(checkpoint, manifest, remote);
      const TestTensors all = tensors_of_saved(0, 1);
      for (const LocalTensor& tensor : all.list()) reader.read(tensor);
      EXPECT_EQ(all.difference(1), "");
      ++used;
    });
    EXPECT_EQ(used, group.rank() == 0 ? 1 : 0);
    EXPECT_THROW(use_on_rank_0(checkpoint, group, [](const auto&...) { throw checkpoint_error({"no"}); }),
                 UserError);
  });
}

// ---- a node that ends in the middle of a save ----

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
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST_F(Nodes, kill_anywhere_leaves_one_checkpoint_whole_on_all_nodes) {
  save_on_nodes({.iteration = 1});
  const std::vector<std::string> points = record_fault_points([&] { save_on_nodes({.iteration = 2}); });
  EXPECT_NE(std::ranges::find(points, "ckpt.before_follow"), points.end());
  int kills = 0, old = 0;
  for (const std::string& point : points) {
    if (!point.starts_with("ckpt.")) continue;
    for (const int64_t rank : {0, 2}) {
      fs::remove_all(folder(0));
      fs::remove_all(folder(2));
      save_on_nodes({.iteration = 1});
      const std::string fault = fmt::format("{}@rank={}:kill", point, rank);
      if (!killed_by(fault, [&] { save_on_nodes({.iteration = 2}); })) continue;
      ++kills;
      const int64_t found = load_from(folders_of(4));
      EXPECT_TRUE(found == 1 || found == 2) << fault << " " << found;
      old += found == 1 ? 1 : 0;
      save_on_nodes({.iteration = 3});
      EXPECT_EQ(load_from(folders_of(4), found), found) << fault;
      EXPECT_EQ(load_from(folders_of(4)), 3) << fault;
      for (const int64_t node : {0, 2}) {
        for (const std::string& name : list_directory(folder(node), ExitCode::data))
          EXPECT_EQ(name.find(".partial"), name.npos) << fault << " " << name;
      }
    }
  }
  EXPECT_GT(kills, 12);
  EXPECT_GT(old, 4) << "kills before the commit must leave the old one";
  EXPECT_LT(old, kills) << "kills after the commit must leave the new one";
}

TEST_F(Nodes, a_failure_on_one_node_fails_the_save_on_all) {
  save_on_nodes({.iteration = 1});
  for (const char* point : {"ckpt.partial_created", "ckpt.shard_done", "ckpt.manifest_written"}) {
    const ScopedFaults faults(fmt::format("{}@rank=2:throw", point));
    EXPECT_THROW(save_on_nodes({.iteration = 2}), Fault) << point;
    EXPECT_EQ(load_from(folders_of(4)), 1) << point;
  }
  {
    const ScopedFaults faults("ckpt.before_follow:throw");
    EXPECT_THROW(save_on_nodes({.iteration = 2}), Fault);
  }
  EXPECT_FALSE(fs::exists(folder(2) / "iter_0000002"));
  EXPECT_EQ(load_from(folders_of(4)), 2) << "rank 0 had committed it";
  save_on_nodes({.iteration = 3});
  EXPECT_TRUE(fs::exists(folder(2) / "iter_0000002")) << "the next save has finished the commit";
  EXPECT_EQ(load_from(folders_of(4), 2), 2);
}

}  // namespace
}  // namespace teratron
