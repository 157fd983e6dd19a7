#include <algorithm>
#include <array>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/async_save.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/collective_errors.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/ckpt/write_shards.h"

// Fault points, in order: ckpt.begin, ckpt.partial_created, those of write_shards.h, ckpt.before_manifest,
// ckpt.manifest_written, ckpt.before_commit, [ckpt.exchanged], ckpt.after_commit, ckpt.after_tracker,
// [ckpt.before_prune, ckpt.pruning, ckpt.pruned], ckpt.end.

namespace teratron {

namespace fs = std::filesystem;

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
                    .ranks = static_cast<int64_t>(fragments.size()),
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
    if (request.retain.interval > 0 || request.retain.last > 0) {
      read_manifest(committed);  // prune only if the new one is valid
      prune_checkpoints(committed, request.retain);
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
  if (request_.on_planned) {
    run_on_all_ranks(group, [&]() -> std::string {
      request_.on_planned(written_tensors(*plan_, request_.tensors.size()));
      return "";
    });
  }
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
  return write_shards(request_, *plan_, target());
}

std::string AsyncSave::commit() {
  if (rank_ != 0) return "";
  write_manifest(request_, *plan_, fragments_, target());
  fault_point("ckpt.before_commit");
  partial_->commit(committed());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
  fault_point("ckpt.after_commit");
  update_directory(request_, committed());
  fault_point("ckpt.end");
  return std::to_string(seconds.count());
}

std::optional<SavedCheckpoint> AsyncSave::advance(int64_t least_progress) {
  if (least_progress <= passed_) return std::nullopt;
  working_.get();
  if (++passed_ == 2) {
    SavedCheckpoint saved{.path = committed(), .seconds = std::stod(broadcast_outcome(outcome_, group_))};
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
