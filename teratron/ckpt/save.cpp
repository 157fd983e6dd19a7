#include <algorithm>
#include <array>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/hash.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/agree.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/ckpt/save_stages.h"

// Fault points, in order: ckpt.begin, ckpt.partial_created, ckpt.shard_created, ckpt.shard_block (each),
// ckpt.before_shard_sync, ckpt.shard_done, ckpt.before_manifest, ckpt.manifest_written, ckpt.before_commit,
// [ckpt.exchanged], ckpt.after_commit, ckpt.after_hint, [ckpt.before_prune, ckpt.pruning, ckpt.pruned],
// ckpt.end.

namespace teratron {

namespace fs = std::filesystem;

// Rank 0's directory of an unfinished save; removed unless committed.
class PartialDirectory {
 public:
  PartialDirectory(fs::path path) : path_(std::move(path)) {
    make_directories(path_, ExitCode::checkpoint);
    lock_ = DirectoryLock::try_lock(path_);
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
  std::optional<DirectoryLock> lock_;
  bool committed_ = false;
};

namespace {

// Shape in the file: that of the box where the part is one, else flat.
std::vector<int64_t> stored_shape(const PlannedPart& part) {
  const Region& region = part.region;
  const std::vector<Piece> pieces = region.cut.pieces();
  const bool whole = region.trimmed.empty() && region.flat_begin == 0 &&
                     region.flat_end == local_numel(region.cut) && pieces.size() == 1;
  if (whole) return pieces[0].global.size;
  return {total_length(part.runs)};
}

std::vector<SafetensorsWriter::Tensor> declare(const std::vector<PlannedPart>& parts, const SavePlan& plan) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::map<std::string, int> uses;
  for (const PlannedPart& part : parts) {
    const int use = uses[part.name]++;
    tensors.push_back({use == 0 ? part.name : fmt::format("{}#{}", part.name, use),
                       plan.tensors.at(part.name).dtype, stored_shape(part)});
  }
  return tensors;
}

// Streams one part into the shard and returns its block hashes.
std::vector<uint64_t> write_part(const PlannedPart& part, const LocalTensor& source,
                                 SafetensorsWriter& writer) {
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
  for (size_t i = 0; i < part.runs.size();) {
    // Runs that are neighbours in the source are one write.
    const char* at = data + part.runs[i].local * element;
    int64_t elements = part.runs[i].length;
    for (++i; i < part.runs.size() && part.runs[i].local == part.runs[i - 1].local + part.runs[i - 1].length;
         ++i) {
      elements += part.runs[i].length;
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
  std::vector<PlannedPart>& parts = plan.mine;
  // Widest type first keeps every tensor aligned.
  std::stable_sort(parts.begin(), parts.end(), [&](const PlannedPart& a, const PlannedPart& b) {
    return size_of(plan.tensors.at(a.name).dtype) > size_of(plan.tensors.at(b.name).dtype);
  });
  const std::vector<SafetensorsWriter::Tensor> tensors = declare(parts, plan);
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
  for (size_t i = 0; i < parts.size(); ++i) {
    ManifestPart part{.stored_name = tensors[i].name, .offset = offset, .region = parts[i].region};
    part.bytes = total_length(parts[i].runs) * size_of(tensors[i].dtype);
    part.hashes = write_part(parts[i], request.tensors[parts[i].source], writer);
    offset += part.bytes;
    fragment.parts[parts[i].name].push_back(std::move(part));
  }
  fault_point("ckpt.before_shard_sync");
  writer.finish();
  fault_point("ckpt.shard_done");
  return to_text(fragment);
}

int64_t next_sequence(const fs::path& directory) {
  for (const fs::path& path : newest_first(directory)) {
    try {
      return read_manifest(path).sequence + 1;
    } catch (const UserError&) {
      continue;  // damaged: an older one tells
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

// The checkpoint is safe already: what fails here is told, and the next save does it again.
void tidy_up(const SaveRequest& request, const fs::path& committed) {
  try {
    write_hint(request.directory, request.iteration);
    fault_point("ckpt.after_hint");
    if (request.retain_interval > 0) {
      read_manifest(committed);  // an old checkpoint goes only when the new one is seen to be sound
      prune_beside(committed, request.retain_interval);
    }
  } catch (const std::exception& error) {
    warn("checkpoint {} is saved, but tidying up failed: {}", printable(committed.string()), error.what());
  }
}

void check_json_object(const std::string& text, const char* name) {
  const auto value = nlohmann::json::parse(text, nullptr, false);
  TERATRON_ASSERT(value.is_object(), "{} is not a JSON object", name);
}

}  // namespace

CheckpointSave::CheckpointSave(SaveRequest request, Peers& peers)
    : request_(std::move(request)), rank_(peers.rank()) {
  enter();
  check_json_object(request_.config, "config");
  check_json_object(request_.state, "state");
  plan_ = std::make_unique<SavePlan>(plan_save(request_.tensors, peers));
  run_id_ = on_rank_0(peers, [&] {
    fault_point("ckpt.begin");
    make_directories(request_.directory, ExitCode::checkpoint);
    sweep_leftovers(request_.directory);
    const std::string run_id = random_hex(16);
    partial_ = std::make_unique<PartialDirectory>(committed().string() + ".partial-" + run_id);
    fault_point("ckpt.partial_created");
    return run_id;
  });
}

CheckpointSave::~CheckpointSave() = default;

void CheckpointSave::enter() const {
  set_fault_context(rank_, request_.iteration);
}

fs::path CheckpointSave::committed() const {
  return request_.directory / iteration_name(request_.iteration);
}

void CheckpointSave::write() {
  enter();
  outcome_ = attempt([&] { return write_shard(request_, *plan_, target()); });
}

void CheckpointSave::share(Peers& peers) {
  fragments_ = agree_on(outcome_, peers);
}

void CheckpointSave::commit() {
  enter();
  if (rank_ != 0) return;
  outcome_ = attempt([&] {
    write_manifest(request_, *plan_, fragments_, target());
    fault_point("ckpt.before_commit");
    partial_->commit(committed());
    fault_point("ckpt.after_commit");
    tidy_up(request_, committed());
    fault_point("ckpt.end");
    return std::string();
  });
}

fs::path CheckpointSave::conclude(Peers& peers) {
  agree_on_rank_0(outcome_, peers);
  return committed();
}

ShardTarget CheckpointSave::target() const {
  return {committed().string() + ".partial-" + run_id_, run_id_, rank_};
}

fs::path save_checkpoint(const SaveRequest& request, Peers& peers) {
  CheckpointSave save(request, peers);
  save.write();
  save.share(peers);
  save.commit();
  return save.conclude(peers);
}

void check_save_directory(const fs::path& directory, Peers& peers) {
  const fs::path probe =
      directory / on_rank_0(peers, [&]() -> std::string {
        make_directories(directory, ExitCode::config);
        const std::string name = ".teratron-probe-" + random_hex(16);
        const std::array<char, 4096> block = {};
        try {
          write_text(directory / name, {block.data(), block.size()}, ExitCode::config);
        } catch (const IoFault& fault) {
          if (!fault.is_full()) throw;
          throw config_error({.what = fault.what(), .fix = "Make room, or save elsewhere with --save"});
        }
        return name;
      });
  const auto remove_probe = [&] {
    std::error_code ignored;
    if (peers.rank() == 0) fs::remove(probe, ignored);
  };
  try {
    on_every_rank(peers, [&]() -> std::string {
      std::error_code ignored;
      if (fs::exists(probe, ignored)) return "";
      throw config_error({.what = "what rank 0 wrote there is not to be seen here",
                          .where = printable(directory.string(), 4096),
                          .fix = "Save to a file system that all nodes share"});
    });
  } catch (...) {
    remove_probe();
    throw;
  }
  remove_probe();
}

}  // namespace teratron
