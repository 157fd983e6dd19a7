// A save whose nodes did not share a folder, as its manifest tells it: which node wrote a shard, and whose
// shards are in a folder. Not collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "teratron/ckpt/manifest.h"

namespace teratron {

/// Shards that nobody sees: they may come back with the folder of their node, so nothing is damaged.
class MissingShards : public UserError {
 public:
  explicit MissingShards(std::vector<Problem> problems)
      : UserError(ExitCode::checkpoint, std::move(problems)) {}
};

/// Numbers of shards.
struct NodeShards {
  int64_t here = 0;
  int64_t all = 0;
};
/// By node; empty if the save had one folder.
std::vector<NodeShards> shards_of_nodes(const std::filesystem::path& checkpoint, const Manifest& manifest);

/// The node that wrote a shard; nullopt if the save had one folder.
std::optional<size_t> node_of_shard(const std::vector<CheckpointNode>& nodes, const std::string& shard);

/// The files of shards that are not in the folder.
std::vector<std::string> missing_shards(const std::filesystem::path& checkpoint, const Manifest& manifest);

/// A problem for each node with some of these shards, which are not there.
std::vector<Problem> missing_problems(const std::filesystem::path& checkpoint,
                                      const std::vector<CheckpointNode>& nodes,
                                      const std::vector<std::string>& shards);

/// A line for each node: whether its shards are in the folder. Empty if the save had one folder.
std::vector<std::string> describe_shards_here(const std::filesystem::path& checkpoint);

/// The manifest without the shards and chunks of nodes none of whose shards are in the folder; all of it if
/// that is every node.
Manifest without_absent_nodes(const std::filesystem::path& checkpoint, Manifest manifest);

}  // namespace teratron
