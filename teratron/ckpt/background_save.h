// A checkpoint written while the training goes on: each rank's shard, then rank 0's commit, on a thread of its own.
//
// Threads of their own never wait for other ranks: where a stage needs all of them, the caller brings them together, at a
// step boundary say, once everybody has come so far. So a background save needs no communicator of its own, and a failure
// is thrown on all ranks at the same place.
#pragma once

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>

#include "teratron/ckpt/save_stages.h"

namespace teratron {

class BackgroundSave {
 public:
  /// Starts to write. `memory` owns what the request's tensors point into and is let go of when it is written. `peers`
  /// must outlive the save. Collective; errors as of save_checkpoint().
  BackgroundSave(SaveRequest request, std::shared_ptr<const void> memory, Peers& peers);
  /// Waits for this rank's thread; what is not committed is removed by rank 0, or, where another rank still writes, by the next
  /// save.
  ~BackgroundSave() = default;

  /// Stages that this rank has done alone: 0 to 2. Not collective.
  int64_t progress() const { return progress_.load(); }
  /// Goes on to the next stage if all ranks have come far enough, `least_progress` being the least of all ranks'.
  /// Returns the committed directory in the end. Collective; throws on every rank what save_checkpoint() would.
  std::optional<std::filesystem::path> advance(int64_t least_progress);
  /// Waits until it is committed. Collective; throws on every rank what save_checkpoint() would.
  std::filesystem::path finish();

 private:
  void start(void (CheckpointSave::*stage)());

  Peers& peers_;
  std::shared_ptr<const void> memory_;
  CheckpointSave save_;
  std::atomic<int64_t> progress_ = 0;
  int64_t passed_ = 0;         // stages after which the ranks have met
  std::future<void> working_;  // last: goes first, and its end waits for the thread
};

}  // namespace teratron
