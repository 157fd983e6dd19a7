#include <algorithm>
#include <array>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/hash.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/async_save.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/collective_errors.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/ckpt/save_plan.h"

// Fault points, in order: ckpt.begin, ckpt.partial_created, ckpt.shard_created, ckpt.shard_block (each),
// ckpt.before_shard_sync, ckpt.shard_done, ckpt.before_manifest, ckpt.manifest_written, ckpt.before_commit,
// [ckpt.exchanged], ckpt.after_commit, ckpt.after_tracker, [ckpt.before_prune, ckpt.pruning, ckpt.pruned],
// ckpt.end.

namespace teratron {

namespace fs = std::filesystem;

// Where a rank writes its shard.
struct ShardTarget {
  fs::path partial;
  std::string run_id;
  int64_t rank = 0;
};

// Rank 0's directory of an unfinished save; removed unless committed.
class PartialDirectory {
 public:
  explicit PartialDirectory(fs::path path) : path_(std::move(path)) {
    make_directories(path_, ExitCode::checkpoint);
    lock_ = FileLock::try_acquire_directory(path_);
  }
  ~PartialDirectory() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(path_, ignored);
  }
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;

  void commit(const fs::path& target) {
    commit_directory(path_, target);
    committed_ = true;
  }

 private:
  fs::path path_;
  std::optional<FileLock> lock_;  // tells a running save from a leftover
  bool committed_ = false;
};

namespace {

// Shape in the file: the part's if it is rectangular, else flat.
std::vector<int64_t> stored_shape(const SaveItem& item) {
  const Region& region = item.region;
  const std::vector<Piece> pieces = region.sharding.pieces();
  const bool whole = region.trimmed.empty() && region.flat_begin == 0 &&
                     region.flat_end == local_numel(region.sharding) && pieces.size() == 1;
  if (whole) return pieces[0].global.size;
  return {total_length(item.ranges)};
}

std::vector<SafetensorsWriter::Tensor> declare(const SavePlan& plan) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::map<std::string, int> uses;
  for (const SaveItem& item : plan.items) {
    const int use = uses[item.name]++;
    tensors.push_back({use == 0 ? item.name : fmt::format("{}#{}", item.name, use),
                       plan.tensors.at(item.name).dtype, stored_shape(item)});
  }
  return tensors;
}

// Streams an item into the shard and returns its block hashes.
std::vector<uint64_t> write_item(const SaveItem& item, const LocalTensor& source, SafetensorsWriter& writer) {
  const std::vector<IndexRange>& ranges = item.ranges;
  std::vector<uint64_t> hashes;
  Hasher hasher;
  int64_t in_block = 0;
  const int64_t element = size_of(source.dtype);
  const std::shared_ptr<const void> fetched = source.fetch ? source.fetch() : nullptr;
  const char* const data = static_cast<const char*>(source.fetch ? fetched.get() : source.data);
  const auto end_block = [&] {
    hashes.push_back(hasher.digest());
    hasher.reset();
    in_block = 0;
    fault_point("ckpt.shard_block");
  };
  for (size_t i = 0; i < ranges.size();) {
    // Ranges that are contiguous in the source are one write.
    const char* at = data + ranges[i].local * element;
    int64_t elements = ranges[i].length;
    for (++i; i < ranges.size() && ranges[i].local == ranges[i - 1].local + ranges[i - 1].length; ++i) {
      elements += ranges[i].length;
    }
    int64_t bytes = elements * element;
    while (bytes > 0) {
      const int64_t step = std::min(bytes, Manifest::block_bytes - in_block);
      hasher.update(at, static_cast<size_t>(step));
      writer.write(at, step);
      at += step;
      bytes -= step;
      in_block += step;
      if (in_block == Manifest::block_bytes) end_block();
    }
  }
  if (in_block > 0) end_block();
  return hashes;
}

std::string write_shard(const SaveRequest& request, SavePlan& plan, const ShardTarget& target) {
  // Widest dtype first keeps every tensor aligned.
  std::stable_sort(plan.items.begin(), plan.items.end(), [&](const SaveItem& a, const SaveItem& b) {
    return size_of(plan.tensors.at(a.name).dtype) > size_of(plan.tensors.at(b.name).dtype);
  });
  const std::vector<SafetensorsWriter::Tensor> tensors = declare(plan);
  ManifestFragment fragment;
  fragment.shard.file = fmt::format("shard-{:05d}.safetensors", target.rank);
  SafetensorsWriter writer(target.partial / fragment.shard.file, tensors,
                           {{"run_id", target.run_id},
                            {"iteration", std::to_string(request.iteration)},
                            {"rank", std::to_string(target.rank)}});
  fragment.shard.bytes = writer.file_bytes();
  fragment.shard.header_bytes = static_cast<int64_t>(writer.header().size());
  fragment.shard.header_hash = hash_text(writer.header());
  fault_point("ckpt.shard_created");
  int64_t offset = fragment.shard.header_bytes;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const SaveItem& item = plan.items[i];
    ManifestChunk chunk{.stored_name = tensors[i].name, .offset = offset, .region = item.region};
    chunk.bytes = total_length(item.ranges) * size_of(tensors[i].dtype);
    chunk.hashes = write_item(item, request.tensors[item.source], writer);
    offset += chunk.bytes;
    fragment.chunks[item.name].push_back(std::move(chunk));
  }
  fault_point("ckpt.before_shard_sync");
  writer.finish();
  fault_point("ckpt.shard_done");
  return to_text(fragment);
}

int64_t next_sequence(const fs::path& directory) {
  for (const fs::path& path : list_checkpoints(directory)) {
    try {
      return read_manifest(path).sequence + 1;
    } catch (const UserError&) {
      continue;  // corrupt: ask an older one
    }
  }
  return 1;
}

void write_manifest(const SaveRequest& request, const SavePlan& plan,
                    const std::vector<std::string>& fragments, const ShardTarget& target) {
  Manifest manifest{.run_id = target.run_id,
                    .iteration = request.iteration,
                    .sequence = next_sequence(request.directory),
                    .config = request.config,
                    .state = request.state};
  for (const auto& [name, info] : plan.tensors) manifest.tensors[name] = {info.dtype, info.shape, {}};
  for (const std::string& fragment : fragments) add_fragment(manifest, fragment);
  fault_point("ckpt.before_manifest");
  write_text(target.partial / "manifest.json", to_text(manifest), ExitCode::checkpoint);
  fault_point("ckpt.manifest_written");
}

// The checkpoint is committed already: a failure is a warning, and the next save does it again.
void update_directory(const SaveRequest& request, const fs::path& committed) {
  try {
    write_tracker(request.directory, request.iteration);
    fault_point("ckpt.after_tracker");
    if (request.retain_interval > 0) {
      read_manifest(committed);  // prune only if the new one is valid
      prune_checkpoints(committed, request.retain_interval);
    }
  } catch (const std::exception& error) {
    warn("checkpoint {} is saved, but updating its folder failed: {}", printable(committed.string()),
         error.what());
  }
}

// Everything that the file system refuses, from a read-only disk to an I/O error, is one kind of failure: the
// checkpoint was not saved.
std::string capture_save(const std::function<std::string()>& work) {
  return capture([&] {
    try {
      return work();
    } catch (const UserError& error) {
      throw Fault(error.what(), ExitCode::checkpoint);
    } catch (const IoFault& fault) {
      throw Fault(fault.what(), ExitCode::checkpoint);
    }
  });
}

void check_json_object(const std::string& text, const char* name) {
  const auto value = nlohmann::json::parse(text, nullptr, false);
  TERATRON_ASSERT(value.is_object(), "{} is not a JSON object", name);
}

}  // namespace

AsyncSave::AsyncSave(SaveRequest request, std::shared_ptr<const void> memory, HostGroup& group)
    : request_(std::move(request)), memory_(std::move(memory)), group_(group), rank_(group.rank()) {
  set_fault_context(rank_, request_.iteration);
  check_json_object(request_.config, "config");
  check_json_object(request_.state, "state");
  plan_ = std::make_unique<SavePlan>(plan_save(request_.tensors, group));
  const auto create = [&] {
    fault_point("ckpt.begin");
    make_directories(request_.directory, ExitCode::checkpoint);
    remove_leftovers(request_.directory);
    const std::string run_id = random_hex(16);
    partial_ = std::make_unique<PartialDirectory>(committed().string() + ".partial-" + run_id);
    fault_point("ckpt.partial_created");
    return run_id;
  };
  run_id_ = broadcast_outcome(rank_ == 0 ? capture_save(create) : "", group);
  start(&AsyncSave::write);
}

AsyncSave::~AsyncSave() = default;

fs::path AsyncSave::committed() const {
  return request_.directory / iteration_name(request_.iteration);
}

ShardTarget AsyncSave::target() const {
  return {committed().string() + ".partial-" + run_id_, run_id_, rank_};
}

void AsyncSave::start(std::string (AsyncSave::*stage)()) {
  working_ = std::async(std::launch::async, [this, stage] {
    set_fault_context(rank_, request_.iteration);
    outcome_ = capture_save([&] { return (this->*stage)(); });
    ++progress_;
  });
}

std::string AsyncSave::write() {
  return write_shard(request_, *plan_, target());
}

std::string AsyncSave::commit() {
  if (rank_ != 0) return "";
  write_manifest(request_, *plan_, fragments_, target());
  fault_point("ckpt.before_commit");
  partial_->commit(committed());
  fault_point("ckpt.after_commit");
  update_directory(request_, committed());
  fault_point("ckpt.end");
  return "";
}

std::optional<SavedCheckpoint> AsyncSave::advance(int64_t least_progress) {
  if (least_progress <= passed_) return std::nullopt;
  working_.get();
  if (++passed_ == 2) {
    broadcast_outcome(outcome_, group_);
    SavedCheckpoint saved{.path = committed()};
    for (const std::string& fragment : fragments_) saved.bytes += fragment_bytes(fragment);
    return saved;
  }
  memory_.reset();
  fragments_ = gather_outcomes(outcome_, group_);
  start(&AsyncSave::commit);
  return std::nullopt;
}

SavedCheckpoint AsyncSave::finish() {
  while (true) {
    if (auto saved = advance(passed_ + 1)) return *saved;
  }
}

SavedCheckpoint save_checkpoint(const SaveRequest& request, HostGroup& group) {
  return AsyncSave(request, nullptr, group).finish();
}

void check_save_directory(const fs::path& directory, HostGroup& group) {
  struct Probe {
    fs::path path;
    bool is_ours;
    ~Probe() {
      std::error_code ignored;
      if (is_ours) fs::remove(path, ignored);
    }
  };
  const std::string name = run_on_rank_0(group, [&]() -> std::string {
    make_directories(directory, ExitCode::config);
    const std::string name = ".teratron-probe-" + random_hex(16);
    const std::array<char, 4096> block = {};
    try {
      write_text(directory / name, {block.data(), block.size()}, ExitCode::config);
    } catch (const IoFault& fault) {
      if (!fault.is_full()) throw;
      throw config_error({.what = fault.what(), .fix = "Free space, or choose another folder with --save"});
    }
    return name;
  });
  const Probe probe{directory / name, group.rank() == 0};
  run_on_all_ranks(group, [&]() -> std::string {
    std::error_code ignored;
    if (fs::exists(probe.path, ignored)) return "";
    throw config_error({.what = "what rank 0 wrote there is not visible here",
                        .where = printable(directory.string(), 4096),
                        .fix = "Save to a file system that all nodes share"});
  });
}

}  // namespace teratron
