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

  /// Number of stages (0 to 5) that this rank's thread has finished: shards; files of the manifest, if it is
  /// divided; commit. Where nodes have a folder each: shards; the manifest; its copies; commit; commit on the
  /// other nodes. Not collective.
  int64_t progress() const { return progress_.load(); }
  /// Continues with the next stage if all ranks have finished the last one. `least_progress` is the minimum
  /// of progress() over the ranks. Returns what was committed in the end. Collective; errors like
  /// save_checkpoint().
  std::optional<SavedCheckpoint> advance(int64_t least_progress);
  /// Waits until it is committed. Collective; errors like save_checkpoint().
  SavedCheckpoint finish();

 private:
  enum class Stage : uint8_t { shards, manifest_files, manifest, prepare, commit, follow };
  void create_partial();
  bool has_nodes() const;
  bool follows() const;  // the first rank of a node but rank 0's
  std::string agree_on(const std::string& outcome);
  void start(Stage stage);
  std::string work(Stage stage);  // its result
  void divide_manifest();
  void list_files();
  std::string manifest_text();
  void prepare();
  std::string commit();
  void follow();
  void commit_folder();
  void update_tracker();
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
  std::unique_ptr<PartialDirectory> partial_;  // the first rank of a folder
  Stage stage_ = Stage::shards;
  std::string outcome_;                      // of the last stage (collective_errors.h)
  std::unique_ptr<SavedMetadata> metadata_;  // of this rank
  std::unique_ptr<Manifest> manifest_;       // rank 0 fills it
  std::string manifest_text_;                // rank 0 and, before its commit, other nodes
  double seconds_ = 0.0;                     // to the commit
  int64_t bytes_ = 0;                        // of all shards
  std::atomic<int64_t> progress_ = 0;
  int64_t passed_ = 0;         // stages after which the ranks have synchronized
  std::future<void> working_;  // last member: its destructor, which runs first, waits for the thread
};

}  // namespace teratron
