#include <algorithm>
#include <system_error>
#include <thread>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/log.h"
#include "teratron/base/partial_folder.h"
#include "teratron/ckpt/async_save.h"
#include "teratron/ckpt/background_removal.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/nodes/node_folders.h"
#include "teratron/ckpt/save_plan.h"
#include "teratron/ckpt/saved_metadata.h"
#include "teratron/ckpt/write_shards.h"
#include "teratron/comm/collective_errors.h"

// Fault points, in order: those of save_plan.h, ckpt.begin, ckpt.partial_created, ckpt.start_thread (of every
// stage), those of write_shards.h, those of saved_metadata.h, ckpt.before_manifest, ckpt.manifest_written,
// ckpt.before_commit (of other nodes ckpt.before_follow), [ckpt.exchanged], ckpt.after_commit,
// ckpt.after_tracker, [ckpt.before_prune, ckpt.pruned], ckpt.end, those of background_removal.h.

namespace teratron {

namespace fs = std::filesystem;

// A folder's directory of an unfinished save; removed unless committed or kept.
class PartialDirectory {
 public:
  PartialDirectory(fs::path path, BackgroundRemoval& removal) : folder_(std::move(path)), removal_(removal) {
    make_directories(folder_.path(), ExitCode::checkpoint);
    lock_ = FileLock::try_acquire_directory(folder_.path());
  }
  ~PartialDirectory() {
    if (!stays_) removal_.add({folder_.path()});
  }
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;

  /// From now on rank 0 may commit it: if this process ends meanwhile, finish_commits() does it here.
  void keep() { stays_ = true; }
  /// Removes what was there before.
  void commit(const fs::path& target) {
    std::optional<fs::path> replaced;
    folder_.finish([&] { replaced = commit_directory(folder_.path(), target); });
    stays_ = true;
    if (replaced) removal_.add({*replaced});
  }

 private:
  UnfinishedFolder folder_;
  BackgroundRemoval& removal_;
  std::optional<FileLock> lock_;  // tells a running save from a leftover
  bool stays_ = false;
};

namespace {

int64_t next_sequence(const fs::path& directory) {
  for (const fs::path& path : list_checkpoints(directory)) {
    try {
      return read_manifest_index(path).sequence + 1;
    } catch (const UserError&) {
      continue;  // corrupt: ask an older one
    }
  }
  return 1;
}

// The folder was made by another host's rank; a network file system may show that late. Ranks that wait ask
// less and less often, since each asks the same server.
void wait_until_visible(const fs::path& directory) {
  constexpr std::chrono::milliseconds limit(10'000), longest(1000);
  const auto begin = std::chrono::steady_clock::now();
  std::error_code ignored;
  for (std::chrono::milliseconds pause(10);
       !fs::is_directory(directory, ignored) && std::chrono::steady_clock::now() - begin < limit;
       pause = std::min(2 * pause, longest)) {
    std::this_thread::sleep_for(pause);
    list_directory(directory.parent_path(), ExitCode::checkpoint);  // refreshes what is known of it
  }
}

void check_manifest_files(const fs::path& checkpoint) {
  const Manifest index = read_manifest_index(checkpoint);
  for (const ManifestFile& file : index.files) {
    const auto size = static_cast<int64_t>(fs::file_size(checkpoint / file.file));
    if (size != file.bytes)
      throw CorruptCheckpoint({{.what = fmt::format("{} has {} bytes", file.file, size)}});
  }
}

// The checkpoint is committed already: a failure is a warning, and the next save does it again.
void update_directory(const fs::path& committed, const std::function<void()>& update) {
  try {
    update();
  } catch (const std::exception& error) {
    warn("checkpoint {} is saved, but updating its folder failed: {}", printable(committed.string()),
         error.what());
  }
}

// Everything that the file system refuses, from a read-only disk to an I/O error, and a manifest that a load
// could not read, are one kind of failure: the checkpoint was not saved.
template <typename Work>
auto as_one_kind(const Work& work) {
  try {
    return work();
  } catch (const UserError& error) {
    throw Fault(error.what(), ExitCode::checkpoint);
  } catch (const IoFault& fault) {
    throw Fault(fault.what(), ExitCode::checkpoint);
  }
}

std::string capture_save(const std::function<std::string()>& work) {
  return capture([&] { return as_one_kind(work); });
}

void check_json_object(const std::string& text, const char* name) {
  const auto value = nlohmann::json::parse(text, nullptr, false);
  TERATRON_ASSERT(value.is_object(), "{} is not a JSON object", name);
}

}  // namespace

AsyncSave::AsyncSave(SaveRequest request, std::shared_ptr<const void> memory, HostGroup& group)
    : request_(std::move(request)), memory_(std::move(memory)), group_(group), rank_(group.rank()) {
  set_fault_context(rank_, request_.iteration);
  if (!request_.removal) request_.removal = std::make_shared<BackgroundRemoval>();
  check_json_object(request_.config, "config");
  check_json_object(request_.state, "state");
  plan_ = std::make_unique<SavePlan>(plan_save(request_.tensors, group));
  if (request_.on_planned) {
    run_on_all_ranks(group, [&] { request_.on_planned(written_tensors(*plan_, request_.tensors.size())); });
  }
  if (request_.nodes) finish_commits(request_.directory, *request_.nodes, group);
  const auto create = [&] {
    run_id_ = random_hex(16);
    create_partial();
    return run_id_;
  };
  run_id_ = broadcast_outcome(rank_ == 0 ? capture_save(create) : "", group);
  if (has_nodes()) {
    const auto create_here = [&] {
      if (follows()) create_partial();
      return std::string();
    };
    agree_on(capture_save(create_here));
  }
  start(Stage::shards);
}

void AsyncSave::create_partial() {
  fault_point("ckpt.begin");
  make_directories(request_.directory, ExitCode::checkpoint);
  request_.removal->add_and_wait(find_leftovers(request_.directory));
  partial_ = std::make_unique<PartialDirectory>(target().partial, *request_.removal);
  fault_point("ckpt.partial_created");
}

bool AsyncSave::has_nodes() const {
  return request_.nodes && !request_.nodes->is_shared();
}

bool AsyncSave::follows() const {
  return has_nodes() && rank_ > 0 && request_.nodes->leads(rank_);
}

// Rank 0's result, on all ranks, if every rank has one.
std::string AsyncSave::agree_on(const std::string& outcome) {
  return combine_outcomes(outcome, group_,
                          [](const std::vector<std::string>& results) { return results[0]; });
}

AsyncSave::~AsyncSave() = default;

fs::path AsyncSave::committed() const {
  return request_.directory / iteration_name(request_.iteration);
}

ShardTarget AsyncSave::target() const {
  return {committed().string() + ".partial-" + run_id_, run_id_, rank_};
}

void AsyncSave::start(Stage stage) {
  stage_ = stage;
  const std::string launched = capture_save([&]() -> std::string {
    fault_point("ckpt.start_thread");
    working_ = std::async(std::launch::async, [this, stage] {
      set_fault_context(rank_, request_.iteration);
      outcome_ = capture_save([&] { return work(stage); });
      ++progress_;
    });
    return "";
  });
  if (launched == "+") return;
  outcome_ = launched;  // no thread: told where its work would have been
  ++progress_;
}

std::string AsyncSave::work(Stage stage) {
  switch (stage) {
    case Stage::shards:
      break;
    case Stage::manifest_files:
      return metadata_->write_files(target());
    case Stage::manifest:
      return rank_ == 0 ? manifest_text() : "";
    case Stage::prepare:
      if (partial_) prepare();
      return "";
    case Stage::commit:
      return rank_ == 0 ? commit() : "";
    case Stage::follow:
      if (follows()) follow();
      return "";
  }
  wait_until_visible(target().partial);
  metadata_ = std::make_unique<SavedMetadata>(write_shards(request_, *plan_, target()), *plan_);
  const SavedMetadata::Sizes sizes = metadata_->sizes();
  return fmt::format("{} {}", sizes.shards, sizes.metadata);
}

// Rank 0.
std::string AsyncSave::manifest_text() {
  if (manifest_->files.empty()) metadata_->add_to(*manifest_);
  manifest_->run_id = run_id_;
  manifest_->iteration = request_.iteration;
  manifest_->sequence = next_sequence(request_.directory);
  manifest_->ranks = group_.size();
  manifest_->bytes = bytes_;
  manifest_->config = request_.config;
  manifest_->state = request_.state;
  if (has_nodes()) manifest_->nodes = request_.nodes->nodes;
  return checked_text(*manifest_);
}

void AsyncSave::prepare() {
  fault_point("ckpt.before_manifest");
  write_text(target().partial / "manifest.json", manifest_text_, ExitCode::checkpoint);
  if (follows()) partial_->keep();
  fault_point("ckpt.manifest_written");
}

// Rank 0: commit, tracker file; returns the seconds to the commit.
std::string AsyncSave::commit() {
  if (!has_nodes()) {
    manifest_text_ = manifest_text();
    prepare();
  }
  fault_point("ckpt.before_commit");
  commit_folder();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
  update_tracker();
  if (!has_nodes()) prune();
  return std::to_string(seconds.count());
}

// The first rank of another node, once rank 0 has committed.
void AsyncSave::follow() {
  fault_point("ckpt.before_follow");
  commit_folder();
  update_tracker();
}

void AsyncSave::commit_folder() {
  request_.removal->wait_until_chosen();  // an earlier save must not take the new one for outdated
  partial_->commit(committed());
}

void AsyncSave::update_tracker() {
  update_directory(committed(), [this] {
    fault_point("ckpt.after_commit");
    write_tracker(request_.directory, request_.iteration);
    fault_point("ckpt.after_tracker");
  });
}

// No rank waits for this.
void AsyncSave::prune() {
  const auto choose = [newest = committed(), retain = request_.retain, rank = rank_,
                       iteration = request_.iteration] {
    set_fault_context(rank, iteration);
    std::vector<fs::path> discarded;
    update_directory(newest, [&] {
      if (retain.interval > 0 || retain.last > 0) {
        check_manifest_files(newest);  // prune only if the new one can be read
        discarded = discard_checkpoints(newest, retain);
      }
      fault_point("ckpt.end");
    });
    return discarded;
  };
  request_.removal->start(choose);
}

// All shards are written: sums their sizes and sends what the manifest says of them where it is written.
void AsyncSave::divide_manifest() {
  const auto sum = [this](const std::vector<std::string>& sizes) {
    int64_t shards = 0, metadata = 0;
    for (const std::string& text : sizes) {
      const size_t space = text.find(' ');
      shards += std::stoll(text.substr(0, space));
      metadata += std::stoll(text.substr(space));
    }
    // Every node has the whole manifest: there, a file per writer would be no smaller.
    const int64_t files = has_nodes() ? 1 : metadata / request_.manifest_file_bytes + 1;
    return fmt::format("{} {}", shards, files);
  };
  const std::string sums = combine_outcomes(outcome_, group_, sum);
  const size_t space = sums.find(' ');
  bytes_ = std::stoll(sums.substr(0, space));
  const int64_t files = std::stoll(sums.substr(space));
  as_one_kind([&] { metadata_->divide(files, group_); });
  manifest_ = std::make_unique<Manifest>();
  start(has_nodes() ? Stage::manifest : files == 1 ? Stage::commit : Stage::manifest_files);
}

void AsyncSave::list_files() {
  combine_outcomes(outcome_, group_, [this](const std::vector<std::string>& lists) {
    SavedMetadata::add_files(lists, *manifest_);
    return "";
  });
  start(Stage::commit);
}

std::optional<SavedCheckpoint> AsyncSave::advance(int64_t least_progress) {
  if (least_progress <= passed_) return std::nullopt;
  if (working_.valid()) working_.get();
  ++passed_;
  switch (stage_) {
    case Stage::shards:
      memory_.reset();
      divide_manifest();
      return std::nullopt;
    case Stage::manifest_files:
      list_files();
      return std::nullopt;
    case Stage::manifest:
      manifest_text_ = agree_on(outcome_);
      start(Stage::prepare);
      return std::nullopt;
    case Stage::prepare:  // every node has its shards and the manifest on disk
      agree_on(outcome_);
      start(Stage::commit);
      return std::nullopt;
    case Stage::commit:
      seconds_ = std::stod(broadcast_outcome(outcome_, group_));
      if (!has_nodes()) break;
      start(Stage::follow);
      return std::nullopt;
    case Stage::follow:
      agree_on(outcome_);
      if (partial_) prune();
      break;
  }
  return SavedCheckpoint{.path = committed(), .bytes = bytes_, .seconds = seconds_};
}

SavedCheckpoint AsyncSave::finish() {
  while (true) {
    if (auto saved = advance(passed_ + 1)) return *saved;
  }
}

SavedCheckpoint save_checkpoint(const SaveRequest& request, HostGroup& group) {
  return AsyncSave(request, nullptr, group).finish();
}

}  // namespace teratron
