// The manifest of a checkpoint on the ranks that load it. Each of its files is read, hashed and checked by
// one rank, which keeps its chunks and answers the other ranks' requests for them. Nothing here looks at
// shards unless asked to. Fault points: ckpt.load_select, ckpt.check_sizes, at every step between messages.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/comm/ranks/rank_exchange.h"

namespace teratron {

class SharedManifest {
 public:
  /// `path` as this rank would find what rank 0 has chosen. Collective. UserError(checkpoint) for pickled
  /// files and newer formats, CorruptCheckpoint for damage.
  SharedManifest(std::filesystem::path path, HostGroup& group);

  const CheckpointInfo& info() const { return info_; }
  /// Where this rank sees the checkpoint: `path`, or a save that this node has not committed. Empty: nowhere.
  const std::filesystem::path& folder() const { return folder_; }

  /// Whether a shard that this rank does not see may be on another node. The same on all ranks.
  bool may_be_elsewhere() const { return !everywhere_ || !index_.nodes.empty(); }

  struct Selection {
    Manifest manifest;  // of `tensors`, the chunks that share elements with them (and perhaps some more)
    std::vector<std::string> unused;  // tensors in this rank's files that no rank asked for
  };
  /// Collective. Tensors that the checkpoint does not hold are skipped.
  Selection select(const std::vector<LocalTensor>& tensors) const;

  /// Collective: CorruptCheckpoint if a shard file is missing or has another size. Each is looked at by one
  /// rank, found by a hash of its name. What it cannot see because it has another folder is not missing.
  void check_sizes() const;

 private:
  void find_folder();
  int64_t keeper(int64_t file) const;
  /// By the rank that keeps their files.
  RankBytes requests_for(const std::vector<LocalTensor>& tensors) const;
  /// The shards of this rank's files, by the rank that looks at them.
  RankBytes shards_by_rank() const;

  std::filesystem::path path_;
  std::filesystem::path folder_;
  bool everywhere_ = true;  // every rank sees the checkpoint
  HostGroup& group_;
  Manifest index_;                             // without chunks
  std::map<int64_t, ManifestFragment> files_;  // that this rank keeps
  CheckpointInfo info_;
};

/// find_checkpoint() (checkpoint.h) that keeps what it has read.
std::optional<SharedManifest> find_manifest(const std::filesystem::path& directory,
                                            std::optional<int64_t> iteration, HostGroup& group);

/// load_tensors() (checkpoint.h) with a manifest that was read before.
int64_t load_tensors(const SharedManifest& shared, const std::vector<LocalTensor>& tensors,
                     const std::vector<std::string>& ignored, HostGroup& group);

}  // namespace teratron
