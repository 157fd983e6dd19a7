// Whether all ranks of a job see one folder, or each machine its own: found by files that ranks write there
// and look for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

/// The folders behind one flag. A node is the ranks that see the same one; nodes are in the order of their
/// lowest rank, which is that of the machines where each has its own folder.
struct NodeFolders {
  std::vector<CheckpointNode> nodes = {};  // empty: one folder for all
  std::vector<std::string> folders = {};   // of each node, absolute
  int64_t mine = 0;                        // this rank's node

  bool is_shared() const { return nodes.empty(); }
  /// Whether this rank, alone in its folder, does what is done there once.
  bool leads(int64_t rank) const { return is_shared() ? rank == 0 : nodes[mine].ranks.front() == rank; }
};

/// "node 1 (ranks 2, 3 on host-b)"
std::string describe_node(const std::vector<CheckpointNode>& nodes, size_t node);
/// A line for the log; "" if the folder is shared.
std::string describe(const NodeFolders& folders);

/// Creates the directory if needed and checks that ranks can write there; to be called before the model is
/// built. Every rank may give another one. UserError(config) if it is not permitted, read-only, on a full
/// disk, or if files that one rank writes stay hidden from some that see the folder. Collective.
NodeFolders check_save_directory(const std::filesystem::path& directory, HostGroup& group);

/// Ends commits that a node has missed: rank 0 had renamed the folder, and it was ended before it did the
/// same. To be called before a save. Collective.
void finish_commits(const std::filesystem::path& directory, const NodeFolders& folders, HostGroup& group);

/// Whether a folder is a save with its manifest that has not been committed here: iter_N.partial-<run id>.
bool is_prepared(const std::filesystem::path& partial, const std::string& run_id);

}  // namespace teratron
