// A save in stages. write() and commit() need no other rank and may run on another thread; the others are
// collective. Each is called once, in this order: save_checkpoint() does just that, AsyncSave spreads them
// over training steps.
#pragma once

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

struct SavePlan;
class PartialDirectory;

/// Where a rank writes its shard.
struct ShardTarget {
  std::filesystem::path partial;
  std::string run_id;
  int64_t rank = 0;
};

class StagedSave {
 public:
  /// Plans the save; rank 0 creates the partial directory. Collective; errors like save_checkpoint().
  StagedSave(SaveRequest request, HostGroup& group);
  /// Removes what was not committed.
  ~StagedSave();
  StagedSave(const StagedSave&) = delete;
  StagedSave& operator=(const StagedSave&) = delete;

  /// Writes this rank's shard. A failure is reported by gather().
  void write();
  /// Collects all ranks' manifest fragments. Collective; throws on every rank if one could not write.
  void gather(HostGroup& group);
  /// Rank 0: manifest, commit, tracker file, pruning. A failure is reported by finish().
  void commit();
  /// Returns the committed directory. Collective; throws on every rank if rank 0 could not commit.
  std::filesystem::path finish(HostGroup& group);

 private:
  void set_context() const;
  std::filesystem::path committed() const;
  ShardTarget target() const;

  SaveRequest request_;
  int64_t rank_;
  std::unique_ptr<SavePlan> plan_;
  std::string run_id_;
  std::unique_ptr<PartialDirectory> partial_;  // rank 0
  std::string outcome_ = "+";                  // of this rank's work (collective_errors.h)
  std::vector<std::string> fragments_;         // of the manifest, by rank
};

}  // namespace teratron
