// The folder that holds checkpoints: names, order, leftovers of killed saves, quarantine, pruning. Nothing
// here is collective; rank 0 calls it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// "iter_0001200", as Megatron-LM writes it.
std::string iteration_name(int64_t iteration);
/// Inverse; nothing for any other name (leftovers, quarantined ones).
std::optional<int64_t> iteration_of(std::string_view name);

/// latest_checkpointed_iteration.txt; nothing where it is missing or holds no number.
std::optional<int64_t> read_hint(const std::filesystem::path& directory);
void write_hint(const std::filesystem::path& directory, int64_t iteration);

/// The committed checkpoints, the one committed last first. That is the order of their iterations unless a
/// run was restarted from an earlier one: later iterations of the abandoned run come after it. Damaged ones
/// are listed too.
std::vector<std::filesystem::path> newest_first(const std::filesystem::path& directory);

/// UserError(checkpoint) where the path (a file, or a checkpoint of Megatron-LM) holds pickled tensors: why
/// they are refused and how to convert them.
void reject_pickled(const std::filesystem::path& path);

/// Held while a directory is written: tells living saves from leftovers, on every file system with flock.
class DirectoryLock {
 public:
  /// Nothing where another process (or another save of this one) holds it.
  static std::optional<DirectoryLock> try_lock(const std::filesystem::path& directory);
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

/// Removes what killed saves, replacements and prunings left behind, unless it is in use.
void sweep_leftovers(const std::filesystem::path& directory);

/// Renames to iter_N.bad (or .bad-2...) so that nothing finds it again; returns the new path.
std::filesystem::path quarantine(const std::filesystem::path& checkpoint);

/// Removes the checkpoints beside `newest` whose iteration is not divisible by `retain_interval` (above 0). Each
/// disappears by one rename before it is deleted.
void prune_beside(const std::filesystem::path& newest, int64_t retain_interval);

/// Puts `partial` in the place of `target`, in one step, whether target exists or not. What was there before
/// is deleted.
void commit_directory(const std::filesystem::path& partial, const std::filesystem::path& target);

}  // namespace teratron
