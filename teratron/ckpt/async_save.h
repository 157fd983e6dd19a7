// --async-save: a checkpoint written while training continues, on a separate thread.
//
// That thread never waits for other ranks. Where a stage needs all of them, the caller brings them together
// at a step boundary, once all have finished the stage before it. So an asynchronous save needs no separate
// communicator, and a failure is thrown on all ranks at the same place.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>

#include "teratron/ckpt/checkpoint.h"

namespace teratron {

struct SavePlan;
struct ShardTarget;
class PartialDirectory;
class SavedMetadata;
struct Manifest;

class AsyncSave {
 public:
  /// Starts writing. `memory` owns the data of the request's tensors and is released once it is written.
  /// `group` must outlive the save. Collective; errors like save_checkpoint().
  AsyncSave(SaveRequest request, std::shared_ptr<const void> memory, HostGroup& group);
  /// Waits for this rank's thread. What is not committed is removed by SaveRequest::removal, or by the next
  /// save if another rank still writes.
  ~AsyncSave();

  /// Number of stages (0 to 3) that this rank's thread has finished: shards; files of the manifest, if it is
  /// divided; commit. Not collective.
  int64_t progress() const { return progress_.load(); }
  /// Continues with the next stage if all ranks have finished the last one. `least_progress` is the minimum
  /// of progress() over the ranks. Returns what was committed in the end. Collective; errors like
  /// save_checkpoint().
  std::optional<SavedCheckpoint> advance(int64_t least_progress);
  /// Waits until it is committed. Collective; errors like save_checkpoint().
  SavedCheckpoint finish();

 private:
  enum class Stage : uint8_t { shards, manifest_files, commit };
  void start(Stage stage);
  std::string work(Stage stage);  // its result
  void divide_manifest();
  void list_files();
  std::string commit();
  void prune();
  std::filesystem::path committed() const;
  ShardTarget target() const;

  SaveRequest request_;
  std::shared_ptr<const void> memory_;
  HostGroup& group_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t rank_;
  std::unique_ptr<SavePlan> plan_;
  std::string run_id_;
  std::unique_ptr<PartialDirectory> partial_;  // rank 0
  Stage stage_ = Stage::shards;
  std::string outcome_;                      // of the last stage (collective_errors.h)
  std::unique_ptr<SavedMetadata> metadata_;  // of this rank
  std::unique_ptr<Manifest> manifest_;       // rank 0 fills it
  int64_t bytes_ = 0;                        // of all shards
  std::atomic<int64_t> progress_ = 0;
  int64_t passed_ = 0;         // stages after which the ranks have synchronized
  std::future<void> working_;  // last member: its destructor, which runs first, waits for the thread
};

}  // namespace teratron
