// Checkpoints: saved by any layout, loaded by any other, committed by one rename.
//
//   DIR/iter_0001200/shard-00000.safetensors ...   what each rank wrote; any safetensors tool reads them
//   DIR/iter_0001200/manifest.json                 global tensors, parts in each shard, hashes, config, state
//   DIR/latest_checkpointed_iteration.txt          Megatron's name; a hint only
//
// A checkpoint is logical: it lists global tensors, and each rank says which part of them it holds
// (LocalTensor). A tensor that several ranks hold is written once. Loading reads the blocks that intersect
// the rank's own parts, whatever cut wrote them: other tensor, pipeline, data, context or expert parallel
// sizes, another padding of the vocabulary, with or without a distributed optimizer. Values come back bitwise
// equal; types are never cast.
//
// Commit protocol. All ranks write iter_N.partial-<run id>/, every write checked, hashed per block and
// fsynced; rank 0 writes the manifest; the rename to iter_N is the commit; then the hint is replaced and old
// checkpoints are pruned. Killed at any moment, either the old or the new checkpoint loads completely.
//
// Every function here is collective unless it says otherwise: all ranks call it with the same arguments (but
// their own tensors), and all return or all throw. Fault points: ckpt.* (see save.cpp, load.cpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/base/error.h"
#include "teratron/base/shard.h"
#include "teratron/comm/host/host_group.h"

namespace teratron {

/// The part of a global tensor that this rank holds, in host memory, row-major.
struct LocalTensor {
  std::string name;  // of the global tensor, the same on every rank that holds a part
  Dtype dtype = Dtype::f32;
  Shard shard;
  /// Elements [flat_begin, flat_end) of the flattened local tensor (padding included), as a distributed
  /// optimizer owns them; flat_end = -1 means up to the end.
  int64_t flat_begin = 0;
  int64_t flat_end = -1;
  /// The element at flat_begin. Saving only reads it.
  void* data = nullptr;
  /// Saving only, instead of data: called when the part is written, and what it returns is let go of
  /// afterwards, so that tensors of a device, or conversions, need the memory of one tensor.
  std::function<std::shared_ptr<const void>()> fetch = nullptr;
};

/// Damaged, incomplete or mixed-up files, as opposed to a checkpoint of another model: an older one may do.
class DamagedCheckpoint : public UserError {
 public:
  explicit DamagedCheckpoint(std::vector<Problem> problems)
      : UserError(ExitCode::checkpoint, std::move(problems)) {}
};

// ---- Saving ----

struct SaveRequest {
  std::filesystem::path directory;
  int64_t iteration = 0;
  std::vector<LocalTensor> tensors;  // together the ranks must hold every element of every tensor
  std::string config = "{}";         // JSON object: the settings of the run; rank 0's is kept
  std::string state = "{}";  // JSON object: consumed samples, scheduler, loss scale...; rank 0's is kept
  /// Once this one is committed, older ones go whose iteration is not divisible by this; 0 keeps all.
  int64_t retain_interval = 0;
};

/// Saves and commits; returns the committed directory. Throws on every rank when one failed: Fault with exit
/// code checkpoint for a full disk, retryable for other I/O; nothing of the attempt remains.
std::filesystem::path save_checkpoint(const SaveRequest& request, Peers& peers);

/// Before the model is built: creates the directory if needed and proves that rank 0 can write there and that
/// every rank sees it. UserError(config) where it is not permitted, read-only, on a full disk or not shared.
void check_save_directory(const std::filesystem::path& directory, Peers& peers);

// ---- Finding and opening ----

struct TensorInfo {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;  // global, without padding
  bool operator==(const TensorInfo&) const = default;
};

struct CheckpointInfo {
  std::filesystem::path path;
  std::string run_id;
  int64_t iteration = 0;
  int64_t ranks = 0;  // that wrote it
  int64_t bytes = 0;  // of all shards
  std::string config;
  std::string state;
  std::map<std::string, TensorInfo> tensors;
};

/// `directory` itself if it is a checkpoint, else the newest in it whose manifest and file sizes are sound (others are
/// named in a warning), or that of `iteration`. Newest is what was committed last, even after a restart from an earlier iteration.
/// Nothing where there is none; UserError(checkpoint) where there were some and none is sound, where
/// `iteration` is missing or unsound, or where the folder holds PyTorch files (.pt, .distcp); UserError(config) where
/// a rank does not see what rank 0 found.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& directory,
                                                     std::optional<int64_t> iteration, Peers& peers);

/// Reads the manifest and checks the files' sizes. Not collective. `path` is an iter_* directory.
CheckpointInfo open_checkpoint(const std::filesystem::path& path);

/// Compares the named fields of the saved configuration with this run's (both JSON objects; a field that
/// either lacks is skipped). UserError(checkpoint) with one problem per differing field. Not collective.
void check_same_model(const CheckpointInfo& info, const std::string& config,
                      const std::vector<std::string>& fields,
                      const std::string& fix = "Use the settings of the checkpoint, or another folder");

// ---- Loading ----

struct LoadReport {
  int64_t bytes_read = 0;   // by this rank
  double seconds = 0;       // in all
  double hash_seconds = 0;  // of which verifying the hashes
};

/// Fills the tensors (their padding is set to zero). Tensors of the checkpoint that no rank asked for are
/// an error unless their name starts with one of `ignored` ("optimizer."). All missing, surplus and
/// mismatching tensors are listed in one UserError(checkpoint); damage found while reading is
/// DamagedCheckpoint.
LoadReport load_tensors(const std::filesystem::path& path, const std::vector<LocalTensor>& tensors,
                        const std::vector<std::string>& ignored, Peers& peers);

/// Reads single tensors of one checkpoint, in any order: for tools. Not collective, not for several threads.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& path);
  ~CheckpointReader();
  /// Errors as of load_tensors, for this tensor.
  void read(const LocalTensor& target);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct LoadRequest {
  std::filesystem::path directory;
  std::optional<int64_t> iteration;  // explicit: no fall back, no quarantine
  std::vector<LocalTensor> tensors;
  std::vector<std::string> ignored;                  // as of load_tensors
  std::function<void(const CheckpointInfo&)> check;  // called before loading; may throw UserError
  /// Instead of `tensors`, where they depend on the checkpoint (its dtypes). Called for each one that is tried.
  std::function<std::vector<LocalTensor>(const CheckpointInfo&)> choose = nullptr;
  int max_damaged = 3;  // give up after so many damaged ones
  bool own = true;      // false: the folder is another run's, and nothing in it is renamed
};

/// find + open + load. UserError(config) where a rank does not see what rank 0 found. A damaged checkpoint of one's own is renamed to iter_N.bad, loudly, and the next older one is
/// tried. Nothing where the directory holds no checkpoint.
std::optional<CheckpointInfo> load_checkpoint(const LoadRequest& request, Peers& peers);

/// Reads every byte of one checkpoint against its hashes. Returns the number of bytes; DamagedCheckpoint with
/// all problems found. Not collective.
int64_t verify_checkpoint(const std::filesystem::path& path);

/// Moves all checkpoints of `directory` and what says which is the latest into a folder "replaced-N" in it, the newest
/// last: a run that starts anew there leaves nothing behind that a later start could take for its own. Returns the
/// folder; nothing when there were none. Collective.
std::optional<std::filesystem::path> set_aside_checkpoints(const std::filesystem::path& directory,
                                                           Peers& peers);

}  // namespace teratron
