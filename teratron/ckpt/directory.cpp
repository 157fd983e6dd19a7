#include "teratron/ckpt/directory.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/manifest.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "iter_";
constexpr const char* hint_name = "latest_checkpointed_iteration.txt";

std::optional<int64_t> parse_whole(std::string_view digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

// Unknown where the manifest cannot be read: then the order of the iterations decides.
std::optional<int64_t> sequence_of(const fs::path& checkpoint) {
  try {
    const fs::path path = checkpoint / "manifest.json";
    return parse_manifest(read_text(path, {.kind = ExitCode::checkpoint}), path.string()).sequence;
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

std::optional<int64_t> read_hint(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::exists(directory / hint_name, ignored)) return std::nullopt;
  std::string text = read_text(directory / hint_name, {.kind = ExitCode::checkpoint, .max_bytes = 4096});
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return parse_whole(text);
}

void write_hint(const fs::path& directory, int64_t iteration) {
  write_text(directory / hint_name, std::to_string(iteration), ExitCode::checkpoint);
}

std::vector<fs::path> newest_first(const fs::path& directory) {
  const std::optional<int64_t> hint = read_hint(directory);
  const auto hinted = hint ? sequence_of(directory / iteration_name(*hint)) : std::nullopt;
  std::vector<std::pair<int, int64_t>> order;  // rank of the group, then the later iteration first
  for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
    const std::optional<int64_t> iteration = iteration_of(name);
    if (!iteration) continue;
    // Beyond the hinted one lies either a commit that could not update the hint any more or an abandoned run.
    int group = hinted && *iteration < *hint ? 2 : 0;
    if (hinted && *iteration == *hint) group = 1;
    if (hinted && *iteration > *hint) {
      const std::optional<int64_t> sequence = sequence_of(directory / name);
      if (sequence && *sequence < *hinted) group = 2;
    }
    order.emplace_back(group, -*iteration);
  }
  std::sort(order.begin(), order.end());
  std::vector<fs::path> paths;
  for (const auto& [group, iteration] : order) paths.push_back(directory / iteration_name(-iteration));
  return paths;
}

void reject_pickled(const fs::path& path) {
  std::error_code ignored;
  std::optional<fs::path> found;
  if (is_pickled(path) && !fs::is_directory(path, ignored)) found = path;
  const auto look_into = [&found](const fs::path& directory) {
    for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
      if (!found && is_pickled(name)) found = directory / name;
    }
  };
  if (!found && fs::is_directory(path, ignored)) {
    look_into(path);
    for (const std::string& name : list_directory(path, ExitCode::checkpoint)) {
      if (!found && name.starts_with("mp_rank_") && fs::is_directory(path / name, ignored))
        look_into(path / name);
    }
  }
  if (!found) return;
  throw checkpoint_error(
      {.what =
           "this is a pickled PyTorch file: loading one runs whatever code it holds, so it is never opened",
       .where = printable(found->string(), 4096),
       .fix =
           "Convert it once, offline, where you trust it. Hugging Face model: python3 -c \"from transformers "
           "import "
           "AutoModelForCausalLM as M; M.from_pretrained('IN').save_pretrained('OUT')\", then 'teratron ckpt "
           "convert --from-hf OUT --save DIR'. Megatron-LM checkpoint: export it to Hugging Face's format "
           "with "
           "Megatron-LM first"});
}

std::optional<DirectoryLock> DirectoryLock::try_lock(const fs::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return DirectoryLock(descriptor);
  ::close(descriptor);
  return std::nullopt;
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void sweep_leftovers(const fs::path& directory) {
  for (const std::string& name : list_directory(directory, ExitCode::checkpoint)) {
    if (!is_leftover(name)) continue;
    const std::optional<DirectoryLock> lock = DirectoryLock::try_lock(directory / name);
    if (!lock) continue;
    std::error_code error;
    fs::remove_all(directory / name, error);
    if (error) warn("cannot remove the leftover '{}': {}", printable(name), error.message());
  }
}

fs::path quarantine(const fs::path& checkpoint) {
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

void prune_beside(const fs::path& newest, int64_t retain_interval) {
  for (const fs::path& path : newest_first(newest.parent_path())) {
    const bool retained = iteration_of(path.filename().string()).value() % retain_interval == 0;
    if (retained || path.filename() == newest.filename()) continue;
    fs::path doomed = path;
    doomed += ".pruned-" + random_hex(8);
    fault_point("ckpt.before_prune");
    rename_path(path, doomed, ExitCode::checkpoint);
    fault_point("ckpt.pruning");
    std::error_code error;
    fs::remove_all(doomed, error);
    if (error) warn("cannot remove '{}': {}", printable(doomed.string()), error.message());
    fault_point("ckpt.pruned");
  }
}

void commit_directory(const fs::path& partial, const fs::path& target) {
  std::error_code ignored;
  if (!fs::exists(target, ignored)) {
    rename_path(partial, target, ExitCode::checkpoint);
    sync_directory(target.parent_path(), ExitCode::checkpoint);
    return;
  }
  // Saved again after a restart from an earlier iteration: exchange the two in one step where the file system
  // can.
  if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
    fs::path old = target;
    old += ".pruned-" + random_hex(8);
    rename_path(target, old, ExitCode::checkpoint);
    rename_path(partial, target, ExitCode::checkpoint);
    sync_directory(target.parent_path(), ExitCode::checkpoint);
    fs::remove_all(old, ignored);
    return;
  }
  sync_directory(target.parent_path(), ExitCode::checkpoint);
  fault_point("ckpt.exchanged");
  fs::remove_all(partial, ignored);
}

}  // namespace teratron
