// Checkpoints: saved with any parallel layout, loaded with any other, committed by one rename.
//
//   DIR/iter_0001200/shard-00000.safetensors ...   of each rank, readable by any safetensors tool
//   DIR/iter_0001200/shard-00000-1.safetensors ... the same of a rank with much to write, written in parallel
//   DIR/iter_0001200/manifest.json                 global tensors, chunks per shard, hashes, config, state
//   DIR/iter_0001200/manifest-00000.json ...       the chunks, by tensor, if they are too many for one file
//   DIR/latest_checkpointed_iteration.txt          Megatron's tracker file; only a hint
//
// A checkpoint lists global tensors; each rank says which part of them it holds (LocalTensor). A tensor that
// several ranks hold is written once. Loading reads the blocks that intersect the rank's parts; the layout
// that wrote them may have other tensor, pipeline, data, context or expert parallel sizes, another padding of
// the vocabulary, with or without a distributed optimizer. Values are bitwise equal; dtypes are never cast.
//
// Commit protocol: all ranks write iter_N.partial-<run id>/; every write is checked, hashed per block and
// fsynced. Rank 0 writes the manifest, with many ranks after some of them have written its chunks' files. The
// rename to iter_N is the commit; then the tracker file is replaced. After a kill at any moment, either the
// old or the new checkpoint loads completely. What fails after the commit is a warning. Old checkpoints and
// leftovers are removed on a thread that no rank waits for.
//
// Machines without a shared disk have a folder each (nodes/node_folders.h): it holds the shards of its ranks
// and the whole manifest, which names the ranks of each. A load reads what is here, and the rest through
// ranks that see it (nodes/peer_shards.h).
//
// No rank sees the metadata of all: which rank writes a tensor and which chunks a rank reads are settled by
// a rank that is responsible for the tensor (save_plan.h, shared_manifest.h). Traffic, memory and time of a
// rank do not grow with the number of ranks, except for some bytes per rank on rank 0 and for tensors of
// which every rank holds another part (docs/scaling.md).
//
// Every function here is collective unless it says otherwise: all ranks call it with the same arguments
// (except their tensors), and all return or all throw. Fault points: ckpt.* (see save.cpp, load.cpp).
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
#include "teratron/base/shard.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/comm/ranks/host_group.h"

namespace teratron {

class BackgroundRemoval;
struct NodeFolders;

/// The part of a global tensor that this rank holds, in host memory, row-major.
struct LocalTensor {
  std::string name;  // of the global tensor: the same on every rank that holds a part
  Dtype dtype = Dtype::f32;
  Shard shard;
  /// Elements [flat_begin, flat_end) of the flattened local tensor (padding included), as a distributed
  /// optimizer owns them; flat_end = -1: to the end.
  int64_t flat_begin = 0;
  int64_t flat_end = -1;
  /// The element at flat_begin. Saving only reads it.
  void* data = nullptr;
  /// Saving only, in place of data: called when the part is written; the result is released right after, so
  /// that conversions need the memory of one tensor per writer.
  std::function<std::shared_ptr<const void>()> fetch = nullptr;
  /// Reads pieces of at most Manifest::block_bytes: elements [begin, end), counted from flat_begin.
  /// Called by several threads at once.
  std::function<std::shared_ptr<const void>(int64_t begin, int64_t end)> read = nullptr;
};

// ---- Saving ----

/// What stays after a commit besides the new checkpoint: the latest ones, `last` with the new one, and those
/// whose iteration is divisible by `interval`. Both 0: everything.
struct Retention {
  int64_t interval = 0;
  int64_t last = 0;
};

struct SaveRequest {
  std::filesystem::path directory;
  int64_t iteration = 0;
  std::vector<LocalTensor> tensors;  // together the ranks must hold every element of every tensor
  std::string config = "{}";         // JSON object: the settings of the run; rank 0's is saved
  std::string state = "{}";  // JSON object: consumed samples, scheduler, loss scale...; rank 0's is saved
  Retention retain = {};
  /// Most files that a rank writes at once, each of at least min_file_bytes.
  int64_t writers = 8;
  int64_t min_file_bytes = int64_t{64} << 20;
  /// Size of metadata that one rank writes, as JSON; more is divided into files of about this size.
  int64_t manifest_file_bytes = int64_t{4} << 20;
  /// The folders that the ranks see as `directory`, which may have another name on each node. Null: one for
  /// all.
  std::shared_ptr<const NodeFolders> nodes = nullptr;
  /// Removes old checkpoints and leftovers, on the first rank of a folder. Null: the save has its own, whose
  /// end waits for it.
  std::shared_ptr<BackgroundRemoval> removal = nullptr;
  /// Called once it is known which of the tensors this rank writes, before any is read.
  std::function<void(const std::vector<bool>& written)> on_planned = nullptr;
};

struct SavedCheckpoint {
  std::filesystem::path path;
  int64_t bytes = 0;     // of all shards
  double seconds = 0.0;  // from the start of the save to its commit, on rank 0
};

/// Saves and commits. If one rank fails, all throw: Fault with exit code checkpoint for whatever the file
/// system refused (full, read-only, not permitted, I/O error); nothing of the attempt remains.
SavedCheckpoint save_checkpoint(const SaveRequest& request, HostGroup& group);

// ---- Finding and opening ----

struct TensorInfo {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;  // global, without padding
  bool operator==(const TensorInfo&) const = default;
};

/// Ranks of a save whose folder the other ranks did not see.
struct CheckpointNode {
  std::string host;
  std::vector<int64_t> ranks;
  bool operator==(const CheckpointNode&) const = default;
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
  std::vector<CheckpointNode> nodes = {};  // empty: all ranks wrote to one folder
};

/// `directory` itself if it is a checkpoint, else the one of `iteration`, else the newest in it whose
/// manifest and file sizes are valid (a warning names the others). Newest is the last committed, even after a
/// restart from an earlier iteration. Rank 0 chooses; another rank may have another folder, or none, if ranks
/// that see the shards can send them. Nullopt if there is none. UserError(checkpoint) if none is valid, if
/// `iteration` is missing or corrupt, if only rank 0 sees none, or if the folder holds PyTorch files (.pt,
/// .distcp).
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& directory,
                                                     std::optional<int64_t> iteration, HostGroup& group);

/// Throws where find_checkpoint() has found nothing, if that is so on rank 0 alone: UserError(checkpoint)
/// that names its node, UserError(config) if the save had one folder.
void require_no_checkpoints(const std::filesystem::path& directory, HostGroup& group);

/// Reads manifest.json of an iter_* directory, and looks at no other file. Not collective.
CheckpointInfo open_checkpoint(const std::filesystem::path& path);

/// Compares the named fields of the saved configuration with this run's (both JSON objects; a field missing
/// in either is skipped). UserError(checkpoint) with one problem per field that differs. Not collective.
void check_same_model(const CheckpointInfo& info, const std::string& config,
                      const std::vector<std::string>& fields,
                      const std::string& fix = "Use the settings of the checkpoint, or another folder");

// ---- Loading ----

/// Fills the tensors; their padding is set to zero. Returns the bytes that this rank read. Tensors of the
/// checkpoint that no rank asked for are an error unless their name starts with one of `ignored`
/// ("optimizer."). All missing, surplus and mismatching tensors are listed in one UserError(checkpoint);
/// CorruptCheckpoint if hashes differ.
int64_t load_tensors(const std::filesystem::path& path, const std::vector<LocalTensor>& tensors,
                     const std::vector<std::string>& ignored, HostGroup& group);

struct LoadRequest {
  std::filesystem::path directory;
  std::optional<int64_t> iteration;  // if set, no fallback and no quarantine
  std::vector<LocalTensor> tensors;
  std::vector<std::string> ignored;  // as in load_tensors
  /// In place of `tensors` if they depend on the checkpoint (its dtypes). Called for each candidate; may
  /// throw UserError.
  std::function<std::vector<LocalTensor>(const CheckpointInfo&)> select = nullptr;
  int max_corrupt = 3;     // throws after so many corrupt checkpoints
  bool quarantine = true;  // false: the folder is another run's, so nothing in it is renamed
  std::shared_ptr<const NodeFolders> nodes = nullptr;  // with `quarantine`, as SaveRequest::nodes
};

/// find + open + load. A corrupt checkpoint is renamed to iter_N.bad with a warning, and the next older one
/// is tried; so it is, without renaming, where no rank sees the shards of a node. Nullopt if the directory
/// holds no checkpoint; UserError(checkpoint) as find_checkpoint(), MissingShards (nodes/saved_nodes.h) if
/// none is whole.
std::optional<CheckpointInfo> load_checkpoint(const LoadRequest& request, HostGroup& group);

/// Verifies every byte of a checkpoint against its hashes; in a node's folder, of the nodes whose shards are
/// there (nodes/saved_nodes.h). Returns the number of bytes; CorruptCheckpoint with all problems. Not
/// collective.
int64_t verify_checkpoint(const std::filesystem::path& path);

/// Moves all checkpoints of `directory` and the tracker file into a folder "replaced-N" in it, the newest
/// last, so that a new run leaves nothing that a later start could mistake for its own. Returns rank 0's
/// folder; nullopt if there were none. `nodes`: as SaveRequest::nodes.
std::optional<std::filesystem::path> archive_checkpoints(const std::filesystem::path& directory,
                                                         const NodeFolders* nodes, HostGroup& group);

}  // namespace teratron
