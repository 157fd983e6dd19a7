// A save in stages. Ranks work alone in write() and commit(), which may run on another thread than the rest, and meet in
// the others. Called once each, in this order; save_checkpoint() is just that, BackgroundSave spreads it over steps.
#pragma once

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

struct SavePlan;
class PartialDirectory;

/// Where a rank's part of a save goes.
struct ShardTarget {
  std::filesystem::path partial;
  std::string run_id;
  int64_t rank = 0;
};

class CheckpointSave {
 public:
  /// Who writes what, and rank 0 makes the partial directory. Collective; errors as of save_checkpoint().
  CheckpointSave(SaveRequest request, Peers& peers);
  /// What was not committed is removed.
  ~CheckpointSave();
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  /// This rank's shard. A failure is kept for share().
  void write();
  /// Collective; throws on every rank when one could not write.
  void share(Peers& peers);
  /// Rank 0: manifest, commit, hint, pruning. A failure is kept for conclude().
  void commit();
  /// The committed directory. Collective; throws on every rank when rank 0 could not commit.
  std::filesystem::path conclude(Peers& peers);

 private:
  void enter() const;
  std::filesystem::path committed() const;
  ShardTarget target() const;

  SaveRequest request_;
  int64_t rank_;
  std::unique_ptr<SavePlan> plan_;
  std::string run_id_;
  std::unique_ptr<PartialDirectory> partial_;  // rank 0
  std::string outcome_ = "+";                  // of this rank's work (agree.h)
  std::vector<std::string> fragments_;         // of the manifest, by rank
};

}  // namespace teratron
