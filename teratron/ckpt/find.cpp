#include <algorithm>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/manifest.h"
#include "teratron/ckpt/nodes/node_folders.h"
#include "teratron/ckpt/nodes/saved_nodes.h"
#include "teratron/ckpt/shared_manifest.h"
#include "teratron/comm/collective_errors.h"

// Fault points: ckpt.before_quarantine, ckpt.quarantined.

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

bool has_manifest(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "manifest.json", ignored);
}

fs::path explicit_checkpoint(const fs::path& directory, int64_t iteration) {
  const fs::path path = directory / iteration_name(iteration);
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return path;
  std::vector<std::string> names;
  for (const fs::path& other : list_checkpoints(directory)) names.push_back(other.filename().string());
  throw checkpoint_error(
      {.what = fmt::format("there is no checkpoint of iteration {}", iteration),
       .where = printable(directory.string(), 4096),
       .fix = names.empty() ? "The folder has none" : fmt::format("It has {}", fmt::join(names, ", "))});
}

bool is_quarantined(const std::string& name) {
  return name.find(".bad") != name.npos && iteration_of(name.substr(0, name.find('.')));
}

// A folder without checkpoints is a fresh start only if it never had one: progress must not be lost silently.
void reject_lost_checkpoints(const fs::path& directory) {
  reject_pickled(directory);
  reject_pickled(directory / "release");
  for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
    if (!is_quarantined(name) && name != "latest_checkpointed_iteration.txt") continue;
    throw checkpoint_error(
        {.what = fmt::format("the folder had checkpoints, but no valid one is left ({})", printable(name)),
         .where = printable(directory.string(), 4096),
         .fix = "Restore one, or start in another folder"});
  }
}

// Newest first. Throws for checkpoints of PyTorch.
std::vector<fs::path> candidates(const fs::path& directory) {
  if (has_manifest(directory)) return {directory};  // a checkpoint itself
  std::vector<fs::path> paths = list_checkpoints(directory);
  for (const fs::path& path : paths) {
    if (!has_manifest(path)) reject_pickled(path);
  }
  if (paths.empty()) reject_lost_checkpoints(directory);
  return paths;
}

// Renames a corrupt checkpoint, if that is possible.
void quarantine(const fs::path& path, const CorruptCheckpoint& error) {
  fault_point("ckpt.before_quarantine");
  warn("checkpoint {} is corrupt: {}", printable(path.string()), error.what());
  try {
    const fs::path bad = quarantine_checkpoint(path);
    warn("it is renamed to {}; trying the next older one", printable(bad.filename().string()));
  } catch (const UserError& failure) {
    warn("it could not be renamed ({}); trying the next older one", failure.what());
  }
  fault_point("ckpt.quarantined");
}

// What rank 0 has chosen, as each rank finds it in its folder.
constexpr const char* itself = ".";  // the folder is the checkpoint

fs::path in_folder(const fs::path& directory, const std::string& name) {
  return name == itself ? directory : directory / name;
}

// "" if there is none.
std::string next_candidate(const LoadRequest& request, const std::set<std::string>& tried) {
  if (request.iteration)
    return explicit_checkpoint(request.directory, *request.iteration).filename().string();
  const std::vector<fs::path> paths =
      tried.empty() ? candidates(request.directory) : list_checkpoints(request.directory);
  if (!paths.empty() && paths.front() == request.directory) return itself;
  for (const fs::path& path : paths) {
    if (!tried.contains(path.filename().string())) return path.filename().string();
  }
  return "";
}

}  // namespace

// If only rank 0 does not see the folder, this is not a fresh start.
void require_no_checkpoints(const fs::path& directory, HostGroup& group) {
  run_on_all_ranks(group, [&] {
    std::vector<fs::path> paths = list_checkpoints(directory);
    paths.push_back(directory);
    const auto found = std::ranges::find_if(paths, has_manifest);
    if (found == paths.end()) return;
    const CheckpointInfo info = open_checkpoint(*found);
    if (info.nodes.empty()) {
      throw config_error({.what = "there are checkpoints here that rank 0 does not see",
                          .where = printable(directory.string(), 4096),
                          .fix = "Load from a file system that all nodes share"});
    }
    throw checkpoint_error(
        {.what = fmt::format("rank 0 sees no checkpoint in its folder, but {} is here: the folder of {} is "
                             "lost or another one",
                             found->filename().string(), describe_node(info.nodes, 0)),
         .where = printable(directory.string(), 4096),
         .fix = "Give every node its folder of that run, or start anew in empty folders or with --fresh"});
  });
}

std::optional<SharedManifest> find_manifest(const fs::path& directory, std::optional<int64_t> iteration,
                                            HostGroup& group) {
  std::vector<Problem> problems;
  std::set<std::string> tried;  // rank 0's
  while (true) {
    const std::string name = run_on_rank_0(
        group, [&] { return next_candidate({.directory = directory, .iteration = iteration}, tried); });
    if (name.empty() && !problems.empty()) throw CorruptCheckpoint(std::move(problems));
    if (name.empty()) {
      require_no_checkpoints(directory, group);
      return std::nullopt;
    }
    const fs::path path = in_folder(directory, name);
    try {
      SharedManifest manifest(path, group);
      if (path != directory) manifest.check_sizes();
      return manifest;
    } catch (const CorruptCheckpoint& error) {
      if (iteration || path == directory) throw;  // there is no other
      tried.insert(name);
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
      if (group.rank() == 0)
        warn("checkpoint {} is corrupt and skipped: {}", printable(path.string()), error.what());
    }
  }
}

std::optional<fs::path> find_checkpoint(const fs::path& directory, std::optional<int64_t> iteration,
                                        HostGroup& group) {
  const std::optional<SharedManifest> found = find_manifest(directory, iteration, group);
  if (!found) return std::nullopt;
  return found->info().path;
}

CheckpointInfo open_checkpoint(const fs::path& path) {
  reject_pickled(path);
  return describe_checkpoint(path, read_manifest_index(path));
}

void check_same_model(const CheckpointInfo& info, const std::string& config,
                      const std::vector<std::string>& fields, const std::string& fix) {
  const json saved = json::parse(info.config);
  const json current = json::parse(config);
  std::vector<Problem> problems;
  for (const std::string& field : fields) {
    if (!saved.contains(field) || !current.contains(field) || saved[field] == current[field]) continue;
    problems.push_back({.what = fmt::format("{}: {} in the checkpoint, {} in this run", field,
                                            printable(saved[field].dump()), printable(current[field].dump())),
                        .where = printable(info.path.string(), 4096)});
  }
  if (problems.empty()) return;
  problems.back().fix = fix;
  throw UserError(ExitCode::checkpoint, std::move(problems));
}

namespace {

// What was tried, on all ranks.
class Attempts {
 public:
  Attempts(const LoadRequest& request, HostGroup& group) : request_(request), group_(group) {}

  /// The name of the next checkpoint; nullopt if the folder has none. Throws if none is left.
  std::optional<std::string> next() {
    std::string name = run_on_rank_0(group_, [&] { return next_candidate(request_, tried_); });
    if (name.empty() && missing_ && corrupt_ == 0) throw *missing_;
    if (name.empty() && problems_.empty()) return std::nullopt;
    if (!name.empty() && corrupt_ < request_.max_corrupt) return name;
    problems_.push_back({.what = fmt::format("{} checkpoints in a row are corrupt; giving up", corrupt_),
                         .where = printable(request_.directory.string(), 4096),
                         .fix = "Check the file system, then restore one or start in another folder"});
    throw CorruptCheckpoint(std::move(problems_));
  }

  void note(const std::string& name, const CorruptCheckpoint& error) {
    ++corrupt_;
    problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
    tried_.insert(name);
    run_on_all_ranks(group_, [&] {
      const fs::path path = in_folder(request_.directory, name);
      if (group_.rank() == 0 && !request_.quarantine)
        warn("checkpoint {} is corrupt; trying the next older one", printable(path.string()));
      if (request_.quarantine && leads()) quarantine(path, error);
    });
  }

  void note(const std::string& name, const MissingShards& error) {
    if (!missing_) missing_ = error;
    tried_.insert(name);
    if (group_.rank() == 0)
      warn("checkpoint {} is incomplete and skipped: {}",
           printable(in_folder(request_.directory, name).string()), error.what());
  }

 private:
  bool leads() const { return request_.nodes ? request_.nodes->leads(group_.rank()) : group_.rank() == 0; }

  const LoadRequest& request_;
  HostGroup& group_;
  std::set<std::string> tried_;
  std::vector<Problem> problems_;
  std::optional<MissingShards> missing_;  // of the newest
  int corrupt_ = 0;
};

}  // namespace

std::optional<CheckpointInfo> load_checkpoint(const LoadRequest& request, HostGroup& group) {
  Attempts attempts(request, group);
  while (true) {
    const std::optional<std::string> name = attempts.next();
    if (!name) {
      require_no_checkpoints(request.directory, group);
      return std::nullopt;
    }
    try {
      const SharedManifest manifest(in_folder(request.directory, *name), group);
      std::vector<LocalTensor> tensors = request.tensors;
      run_on_all_ranks(group, [&] {
        if (request.select) tensors = request.select(manifest.info());
      });
      load_tensors(manifest, tensors, request.ignored, group);
      return manifest.info();
    } catch (const CorruptCheckpoint& error) {
      if (request.iteration) throw;
      attempts.note(*name, error);
    } catch (const MissingShards& error) {
      if (request.iteration || *name == itself) throw;
      attempts.note(*name, error);
    }
  }
}

namespace {

// Returns the new folder; "" if there was nothing.
std::string archive(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) return "";
  if (!has_held_checkpoints(directory)) return "";
  std::vector<fs::path> paths = list_checkpoints(directory);
  fs::path archive;
  for (int number = 1; archive.empty() || fs::exists(archive, ignored); ++number) {
    archive = directory / fmt::format("replaced-{}", number);
  }
  make_directories(archive, ExitCode::checkpoint);
  // Until the newest is moved, a start without --fresh finds the old run unchanged.
  std::reverse(paths.begin(), paths.end());
  for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
    if (is_quarantined(name) || name == "latest_checkpointed_iteration.txt")
      paths.push_back(directory / name);
  }
  for (const fs::path& path : paths) {
    if (fs::exists(path, ignored)) rename_path(path, archive / path.filename(), ExitCode::checkpoint);
  }
  sync_directory(archive, ExitCode::checkpoint);
  sync_directory(directory, ExitCode::checkpoint);
  return archive.string();
}

}  // namespace

std::optional<fs::path> archive_checkpoints(const fs::path& directory, const NodeFolders* nodes,
                                            HostGroup& group) {
  if (nodes) finish_commits(directory, *nodes, group);
  const bool leads = nodes ? nodes->leads(group.rank()) : group.rank() == 0;
  const auto first = [](const std::vector<std::string>& folders) { return folders.front(); };
  const std::string moved =
      run_on_all_ranks(group, [&] { return leads ? archive(directory) : std::string(); }, first);
  if (moved.empty()) return std::nullopt;
  return fs::path(moved);
}

}  // namespace teratron
