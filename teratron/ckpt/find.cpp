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

std::string next_candidate(const LoadRequest& request, const std::set<fs::path>& tried) {
  if (request.iteration) return explicit_checkpoint(request.directory, *request.iteration).string();
  const std::vector<fs::path> paths =
      tried.empty() ? candidates(request.directory) : list_checkpoints(request.directory);
  const auto next = std::find_if(paths.begin(), paths.end(),
                                 [&tried](const fs::path& path) { return !tried.contains(path); });
  return next == paths.end() ? "" : next->string();
}

// A folder that one node does not see is not corrupt.
void check_shared(const fs::path& path, HostGroup& group) {
  const bool is_here = !run_on_rank_0(group, [&] { return has_manifest(path) ? "here" : ""; }).empty();
  run_on_all_ranks(group, [&] {
    if (!is_here || has_manifest(path)) return;
    throw config_error({.what = "what rank 0 found there is not visible here",
                        .where = printable(path.string(), 4096),
                        .fix = "Load from a file system that all nodes share"});
  });
}

// Rank 0 has found nothing. If only its node does not see the folder, this is not a fresh start.
void check_empty(const fs::path& directory, HostGroup& group) {
  run_on_all_ranks(group, [&] {
    std::vector<fs::path> paths = list_checkpoints(directory);
    paths.push_back(directory);
    if (std::none_of(paths.begin(), paths.end(), has_manifest)) return;
    throw config_error({.what = "there are checkpoints here that rank 0 does not see",
                        .where = printable(directory.string(), 4096),
                        .fix = "Load from a file system that all nodes share"});
  });
}

}  // namespace

std::optional<SharedManifest> find_manifest(const fs::path& directory, std::optional<int64_t> iteration,
                                            HostGroup& group) {
  std::vector<Problem> problems;
  std::set<fs::path> tried;  // rank 0's
  while (true) {
    const fs::path path = run_on_rank_0(
        group, [&] { return next_candidate({.directory = directory, .iteration = iteration}, tried); });
    if (path.empty() && !problems.empty()) throw CorruptCheckpoint(std::move(problems));
    if (path.empty()) {
      check_empty(directory, group);
      return std::nullopt;
    }
    check_shared(path, group);
    try {
      SharedManifest manifest(path, group);
      if (path != directory) manifest.check_sizes();
      return manifest;
    } catch (const CorruptCheckpoint& error) {
      if (iteration || path == directory) throw;  // there is no other
      tried.insert(path);
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

std::optional<CheckpointInfo> load_checkpoint(const LoadRequest& request, HostGroup& group) {
  std::vector<Problem> problems;
  std::set<fs::path> tried;  // rank 0's
  for (int corrupt = 0;;) {
    const fs::path path = run_on_rank_0(group, [&] { return next_candidate(request, tried); });
    if (path.empty() && problems.empty()) {
      check_empty(request.directory, group);
      return std::nullopt;
    }
    if (path.empty() || corrupt == request.max_corrupt) {
      problems.push_back({.what = fmt::format("{} checkpoints in a row are corrupt; giving up", corrupt),
                          .where = printable(request.directory.string(), 4096),
                          .fix = "Check the file system, then restore one or start in another folder"});
      throw CorruptCheckpoint(std::move(problems));
    }
    check_shared(path, group);
    try {
      const SharedManifest manifest(path, group);
      std::vector<LocalTensor> tensors = request.tensors;
      run_on_all_ranks(group, [&] {
        if (request.select) tensors = request.select(manifest.info());
      });
      load_tensors(manifest, tensors, request.ignored, group);
      return manifest.info();
    } catch (const CorruptCheckpoint& error) {
      if (request.iteration) throw;
      ++corrupt;
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
      run_on_rank_0(group, [&]() -> std::string {
        tried.insert(path);
        if (request.quarantine) {
          quarantine(path, error);
        } else {
          warn("checkpoint {} is corrupt; trying the next older one", printable(path.string()));
        }
        return "";
      });
    }
  }
}

std::optional<fs::path> archive_checkpoints(const fs::path& directory, HostGroup& group) {
  const std::string moved = run_on_rank_0(group, [&]() -> std::string {
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
  });
  if (moved.empty()) return std::nullopt;
  return fs::path(moved);
}

}  // namespace teratron
