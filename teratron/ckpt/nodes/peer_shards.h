// Shards that a rank does not see, read through ranks that do: on a machine without a shared disk, what other
// machines wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/shard_reader.h"
#include "teratron/comm/ranks/host_group.h"

namespace teratron {

/// Which ranks see the shards that some rank misses.
class ShardHolders {
 public:
  /// `folder`: of the checkpoint, empty if this rank does not see it. `needed`: the shards that this rank
  /// reads. Without `may_be_elsewhere` none is looked for: every rank sees the one folder. Collective;
  /// MissingShards if the save had several folders and no rank sees one of them.
  ShardHolders(std::filesystem::path folder, const Manifest& needed, bool may_be_elsewhere, HostGroup& group);

  /// False: every rank sees what it needs. The same on all ranks.
  bool any_missing() const { return any_missing_; }
  /// Whether this rank misses the shard, and another sees it.
  bool is_elsewhere(const std::string& file) const { return holders_.contains(file); }
  /// A rank that sees such a shard.
  int64_t holder_of(const std::string& file) const;
  /// What is in this rank's folder, one after the other.
  std::string read(const std::vector<ShardBytes>& wanted) const;
  HostGroup& group() const { return group_; }

 private:
  bool sees(const std::string& file, int64_t bytes) const;

  std::filesystem::path folder_;
  HostGroup& group_;
  bool any_missing_ = false;
  std::map<std::string, std::vector<int64_t>> holders_;  // of the shards that this rank misses
};

/// Blocks that are fetched before they are read.
class PeerShards final : public RemoteShards {
 public:
  /// `holders` must outlive it.
  explicit PeerShards(const ShardHolders& holders) : holders_(holders) {}
  bool holds(const std::string& file) const override { return holders_.is_elsewhere(file); }
  /// From the last fetch().
  void read(const ShardBytes& where, void* out) const override;
  /// Fetches these blocks in place of those before, in messages of a bounded size. Fault point: ckpt.fetch.
  /// Collective.
  void fetch(const std::set<ShardBytes>& wanted);

 private:
  const ShardHolders& holders_;
  std::map<ShardBytes, std::string> blocks_;
};

/// Runs `use` on rank 0, which reads any shard of the checkpoint at `folder` while it runs: the other ranks
/// send it what it does not see. They wait for rank 0 as in a broadcast. Throws what `use` throws, on all
/// ranks. Collective.
void use_on_rank_0(const std::filesystem::path& folder, HostGroup& group,
                   const std::function<void(const Manifest&, const RemoteShards&)>& use);

}  // namespace teratron
