#include "teratron/ckpt/directory.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fcntl.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "iter_";
constexpr const char* tracker_name = "latest_checkpointed_iteration.txt";

std::optional<int64_t> parse_whole(std::string_view digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

// Nullopt if the tracker file is missing or not a file with a number.
std::optional<int64_t> read_tracker(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::exists(directory / tracker_name, ignored)) return std::nullopt;
  std::string text;
  try {
    text = read_text(directory / tracker_name, {.kind = ExitCode::checkpoint, .max_bytes = 4096});
  } catch (const UserError&) {
    return std::nullopt;
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return parse_whole(text);
}

// Nullopt if the manifest cannot be read: then iterations decide the order.
std::optional<int64_t> sequence_of(const fs::path& checkpoint) {
  try {
    return read_manifest_index(checkpoint).sequence;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

bool is_leftover(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == name.npos || !iteration_of(name.substr(0, dot))) return false;
  const std::string_view suffix = name.substr(dot);
  return suffix.starts_with(".partial-") || suffix.starts_with(".pruned-");
}

bool is_pickled(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".pt" || extension == ".pth" || extension == ".bin" || extension == ".pkl" ||
         extension == ".distcp" || extension == ".ckpt";
}

}  // namespace

std::string iteration_name(int64_t iteration) {
  return fmt::format("iter_{:07d}", iteration);
}

std::optional<int64_t> iteration_of(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::optional<int64_t> iteration = parse_whole(name.substr(prefix.size()));
  if (!iteration || iteration_name(*iteration) != name) return std::nullopt;
  return iteration;
}

void write_tracker(const fs::path& directory, int64_t iteration) {
  write_text(directory / tracker_name, std::to_string(iteration), ExitCode::checkpoint);
}

std::vector<fs::path> list_checkpoints(const fs::path& directory) {
  const std::optional<int64_t> tracked = read_tracker(directory);
  const auto tracked_sequence = tracked ? sequence_of(directory / iteration_name(*tracked)) : std::nullopt;
  // After the tracked iteration: a commit that could not update the tracker file, or an abandoned run.
  enum Age : uint8_t { newer, latest, older };
  std::vector<std::pair<Age, int64_t>> order;  // later iterations first within an age
  for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
    const std::optional<int64_t> iteration = iteration_of(name);
    if (!iteration) continue;
    Age age = newer;
    if (tracked_sequence && *iteration > *tracked) {
      const std::optional<int64_t> sequence = sequence_of(directory / name);
      if (sequence && *sequence < *tracked_sequence) age = older;
    } else if (tracked_sequence) {
      age = *iteration == *tracked ? latest : older;
    }
    order.emplace_back(age, -*iteration);
  }
  std::sort(order.begin(), order.end());
  std::vector<fs::path> paths;
  for (const auto& [age, iteration] : order) paths.push_back(directory / iteration_name(-iteration));
  return paths;
}

bool has_held_checkpoints(const fs::path& directory) {
  return std::ranges::any_of(list_directory(directory, ExitCode::checkpoint), [](const std::string& name) {
    return iteration_of(name.substr(0, name.find('.'))) && !is_leftover(name);
  });
}

void reject_pickled(const fs::path& path) {
  std::error_code ignored;
  std::optional<fs::path> found;
  const auto look_into = [&found](const fs::path& directory) {
    for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
      if (!found && is_pickled(name)) found = directory / name;
    }
  };
  if (!fs::is_directory(path, ignored)) {
    if (is_pickled(path)) found = path;
  } else {
    look_into(path);
    for (const std::string& name : list_directory(path, ExitCode::checkpoint)) {
      if (name.starts_with("mp_rank_") && fs::is_directory(path / name, ignored)) look_into(path / name);
    }
  }
  if (!found) return;
  throw checkpoint_error(
      {.what = "this is a pickled PyTorch file, which is none of this program's checkpoints",
       .where = printable(found->string(), 4096),
       .fix =
           "Megatron-LM checkpoint: name it with --load, and another folder with --save, or convert it with "
           "'teratron ckpt convert --from-megatron IN --save DIR'. Hugging Face model: 'teratron ckpt "
           "convert --from-hf FOLDER --save DIR'"});
}

std::vector<fs::path> find_leftovers(const fs::path& directory) {
  std::vector<fs::path> found;
  for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
    if (is_leftover(name) && FileLock::try_acquire_directory(directory / name))
      found.push_back(directory / name);
  }
  return found;
}

fs::path quarantine_checkpoint(const fs::path& checkpoint) {
  for (int copy = 1;; ++copy) {
    fs::path bad = checkpoint;
    bad += copy == 1 ? std::string(".bad") : fmt::format(".bad-{}", copy);
    std::error_code ignored;
    if (fs::exists(bad, ignored)) continue;
    rename_path(checkpoint, bad, ExitCode::checkpoint);
    sync_directory(checkpoint.parent_path(), ExitCode::checkpoint);
    return bad;
  }
}

std::vector<fs::path> discard_checkpoints(const fs::path& newest, const Retention& retain) {
  std::vector<fs::path> discarded;
  const int64_t committed = iteration_of(newest.filename().string()).value();
  int64_t latest = 0;  // checkpoints up to the new one, from the latest on
  for (const fs::path& path : list_checkpoints(newest.parent_path())) {
    const int64_t iteration = iteration_of(path.filename().string()).value();
    const bool is_later = iteration > committed;
    if (!is_later) ++latest;
    const bool is_latest = retain.last > 0 && (is_later || latest <= retain.last);
    const bool is_retained = retain.interval > 0 && iteration % retain.interval == 0;
    if (is_latest || is_retained || iteration == committed) continue;
    fs::path doomed = path;
    doomed += ".pruned-" + random_hex(8);
    fault_point("ckpt.before_prune");
    rename_path(path, doomed, ExitCode::checkpoint);
    discarded.push_back(doomed);
    fault_point("ckpt.pruned");
  }
  return discarded;
}

namespace {

// After a commit: the checkpoint is there, but may be lost with the power.
void sync_committed(const fs::path& target) {
  try {
    sync_directory(target.parent_path(), ExitCode::checkpoint);
  } catch (const std::exception& error) {
    warn("checkpoint {} is saved, but syncing its folder to disk failed: {}", printable(target.string()),
         error.what());
  }
}

// Where two folders cannot be exchanged in one step.
fs::path replace_directory(const fs::path& partial, const fs::path& target) {
  fs::path old = target;
  old += ".pruned-" + random_hex(8);
  rename_path(target, old, ExitCode::checkpoint);
  try {
    rename_path(partial, target, ExitCode::checkpoint);
  } catch (...) {
    std::error_code ignored;
    fs::rename(old, target, ignored);
    throw;
  }
  return old;
}

}  // namespace

std::optional<fs::path> commit_directory(const fs::path& partial, const fs::path& target) {
  std::error_code ignored;
  std::optional<fs::path> replaced;
  if (!fs::exists(target, ignored)) {
    rename_path(partial, target, ExitCode::checkpoint);
  } else if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    // Saved again after a restart from an earlier iteration: both are exchanged, if the file system can.
    replaced = partial;
    fault_point("ckpt.exchanged");
  } else {
    replaced = replace_directory(partial, target);
  }
  sync_committed(target);
  return replaced;
}

}  // namespace teratron
