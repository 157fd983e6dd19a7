#include <algorithm>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/agree.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/ckpt/manifest.h"

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
  for (const fs::path& other : newest_first(directory)) names.push_back(other.filename().string());
  throw checkpoint_error(
      {.what = fmt::format("there is no checkpoint of iteration {}", iteration),
       .where = printable(directory.string(), 4096),
       .fix = names.empty() ? "The folder holds none" : fmt::format("It holds {}", fmt::join(names, ", "))});
}

// A folder without checkpoints is a fresh start only if it never had one: progress must not be lost in
// silence.
void reject_lost_history(const fs::path& directory) {
  reject_pickled(directory);
  reject_pickled(directory / "release");
  for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
    const bool was_damaged = name.find(".bad") != name.npos && iteration_of(name.substr(0, name.find('.')));
    if (!was_damaged && name != "latest_checkpointed_iteration.txt") continue;
    throw checkpoint_error(
        {.what =
             fmt::format("the folder had checkpoints and none is left that is sound ({})", printable(name)),
         .where = printable(directory.string(), 4096),
         .fix = "Restore one, or start afresh in another folder"});
  }
}

// The candidates, newest first; never those of PyTorch, which are refused.
std::vector<fs::path> candidates(const fs::path& directory) {
  if (has_manifest(directory)) return {directory};  // a checkpoint itself
  std::vector<fs::path> paths = newest_first(directory);
  for (const fs::path& path : paths) {
    if (!has_manifest(path)) reject_pickled(path);
  }
  if (paths.empty()) reject_lost_history(directory);
  return paths;
}

std::string find_sound(const fs::path& directory) {
  std::vector<Problem> problems;
  for (const fs::path& path : candidates(directory)) {
    try {
      read_manifest(path);
      return path.string();
    } catch (const DamagedCheckpoint& error) {
      warn("checkpoint {} is damaged and passed over: {}", printable(path.string()), error.what());
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  if (!problems.empty()) throw DamagedCheckpoint(std::move(problems));
  return "";
}

// Rank 0's part of falling back: out of the way with the damaged one, or at least past it.
void set_aside(const fs::path& path, const DamagedCheckpoint& error) {
  fault_point("ckpt.before_quarantine");
  warn("checkpoint {} is damaged: {}", printable(path.string()), error.what());
  try {
    const fs::path bad = quarantine(path);
    warn("it is now called {}; the next older one is tried", printable(bad.filename().string()));
  } catch (const UserError& cannot) {
    warn("it could not be renamed ({}); the next older one is tried", cannot.what());
  }
  fault_point("ckpt.quarantined");
}

std::string next_candidate(const LoadRequest& request, const std::set<fs::path>& passed) {
  if (request.iteration) return explicit_checkpoint(request.directory, *request.iteration).string();
  const std::vector<fs::path> paths =
      passed.empty() ? candidates(request.directory) : newest_first(request.directory);
  const auto next = std::find_if(paths.begin(), paths.end(),
                                 [&passed](const fs::path& path) { return !passed.contains(path); });
  return next == paths.end() ? "" : next->string();
}

// A folder that one machine does not see is not damaged.
void check_shared(const fs::path& path, Peers& peers) {
  const std::vector<std::string> seen =
      on_every_rank(peers, [&] { return has_manifest(path) ? "here" : ""; });
  on_every_rank(peers, [&]() -> std::string {
    if (seen[0].empty() || !seen[peers.rank()].empty()) return "";
    throw config_error({.what = "what rank 0 found there is not to be seen here",
                        .where = printable(path.string(), 4096),
                        .fix = "Load from a file system that all nodes share"});
  });
}

// Rank 0 has found nothing. A folder that its machine alone does not see is no fresh start.
void check_empty(const fs::path& directory, Peers& peers) {
  on_every_rank(peers, [&]() -> std::string {
    std::vector<fs::path> paths = newest_first(directory);
    paths.push_back(directory);
    if (std::none_of(paths.begin(), paths.end(), has_manifest)) return "";
    throw config_error({.what = "there are checkpoints here, but rank 0 sees none",
                        .where = printable(directory.string(), 4096),
                        .fix = "Load from a file system that all nodes share"});
  });
}

}  // namespace

std::optional<fs::path> find_checkpoint(const fs::path& directory, std::optional<int64_t> iteration,
                                        Peers& peers) {
  const std::string found = on_rank_0(peers, [&]() -> std::string {
    if (!iteration) return has_manifest(directory) ? directory.string() : find_sound(directory);
    const fs::path path = explicit_checkpoint(directory, *iteration);
    if (!has_manifest(path)) reject_pickled(path);
    read_manifest(path);
    return path.string();
  });
  if (found.empty()) {
    check_empty(directory, peers);
    return std::nullopt;
  }
  check_shared(found, peers);
  return fs::path(found);
}

CheckpointInfo open_checkpoint(const fs::path& path) {
  reject_pickled(path);
  const Manifest manifest = read_manifest(path);
  CheckpointInfo info{.path = path,
                      .run_id = manifest.run_id,
                      .iteration = manifest.iteration,
                      .ranks = static_cast<int64_t>(manifest.shards.size()),
                      .config = manifest.config,
                      .state = manifest.state};
  for (const ManifestShard& shard : manifest.shards) info.bytes += shard.bytes;
  for (const auto& [name, tensor] : manifest.tensors) info.tensors[name] = {tensor.dtype, tensor.shape};
  return info;
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

std::optional<CheckpointInfo> load_checkpoint(const LoadRequest& request, Peers& peers) {
  std::vector<Problem> damage;
  std::set<fs::path> passed;  // rank 0's
  for (int damaged = 0;;) {
    const fs::path path = on_rank_0(peers, [&] { return next_candidate(request, passed); });
    if (path.empty() && damage.empty()) {
      check_empty(request.directory, peers);
      return std::nullopt;
    }
    if (path.empty() || damaged == request.max_damaged) {
      damage.push_back({.what = fmt::format("{} checkpoints in a row are damaged; giving up", damaged),
                        .where = printable(request.directory.string(), 4096),
                        .fix = "Check the file system, then restore one or start afresh in another folder"});
      throw DamagedCheckpoint(std::move(damage));
    }
    check_shared(path, peers);
    try {
      CheckpointInfo info;
      std::vector<LocalTensor> tensors = request.tensors;
      on_every_rank(peers, [&]() -> std::string {
        info = open_checkpoint(path);
        if (request.check) request.check(info);
        if (request.choose) tensors = request.choose(info);
        return "";
      });
      load_tensors(path, tensors, request.ignored, peers);
      return info;
    } catch (const DamagedCheckpoint& error) {
      if (request.iteration) throw;
      ++damaged;
      damage.insert(damage.end(), error.problems().begin(), error.problems().end());
      on_rank_0(peers, [&]() -> std::string {
        passed.insert(path);
        if (request.own) {
          set_aside(path, error);
        } else {
          warn("checkpoint {} is damaged; the next older one is tried", printable(path.string()));
        }
        return "";
      });
    }
  }
}

std::optional<fs::path> set_aside_checkpoints(const fs::path& directory, Peers& peers) {
  const std::string moved = on_rank_0(peers, [&]() -> std::string {
    std::error_code ignored;
    if (!fs::is_directory(directory, ignored)) return "";
    std::vector<fs::path> paths = newest_first(directory);
    if (paths.empty()) return "";
    fs::path aside;
    for (int number = 1; aside.empty() || fs::exists(aside, ignored); ++number) {
      aside = directory / fmt::format("replaced-{}", number);
    }
    make_directories(aside, ExitCode::checkpoint);
    // Until the newest has gone, a start without --fresh finds the old run as it was.
    std::reverse(paths.begin(), paths.end());
    paths.push_back(directory / "latest_checkpointed_iteration.txt");
    for (const fs::path& path : paths) {
      if (fs::exists(path, ignored)) rename_path(path, aside / path.filename(), ExitCode::checkpoint);
    }
    sync_directory(aside, ExitCode::checkpoint);
    sync_directory(directory, ExitCode::checkpoint);
    return aside.string();
  });
  if (moved.empty()) return std::nullopt;
  return fs::path(moved);
}

}  // namespace teratron
