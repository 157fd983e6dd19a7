// The folder of checkpoints: names, order, leftovers of killed saves, quarantine, pruning. Nothing here is
// collective; rank 0 calls it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// "iter_0001200", as in Megatron-LM.
std::string iteration_name(int64_t iteration);
/// Inverse; nullopt for any other name (leftovers, quarantined checkpoints).
std::optional<int64_t> iteration_of(std::string_view name);

/// Writes latest_checkpointed_iteration.txt.
void write_tracker(const std::filesystem::path& directory, int64_t iteration);

/// The committed checkpoints, last committed first. That is the order of their iterations unless a run was
/// restarted from an earlier one: later iterations of the abandoned run come after it. Includes corrupt ones.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& directory);

/// Whether the folder holds checkpoints, or had some that were damaged and are quarantined.
bool has_held_checkpoints(const std::filesystem::path& directory);

/// UserError(checkpoint), saying why and how to convert them, if the path (a file, or a checkpoint of
/// Megatron-LM) holds pickled tensors.
void reject_pickled(const std::filesystem::path& path);

/// What killed saves, replacements and removals left, unless a FileLock on it is held.
std::vector<std::filesystem::path> find_leftovers(const std::filesystem::path& directory);

/// Renames to iter_N.bad (or .bad-2...) so that nothing finds it again; returns the new path.
std::filesystem::path quarantine_checkpoint(const std::filesystem::path& checkpoint);

struct Retention;  // checkpoint.h
/// Renames the checkpoints other than `newest` that `retain` does not keep, so that nothing finds them again;
/// returns their new paths. Iterations later than `newest`, left by a training that went back, do not count
/// in Retention::last, and it keeps them all. With `last` 0, those that are not multiples of
/// Retention::interval are removed.
std::vector<std::filesystem::path> discard_checkpoints(const std::filesystem::path& newest,
                                                       const Retention& retain);

/// Renames `partial` to `target` in one step, whether target exists or not. Returns the new path of
/// what was there before.
std::optional<std::filesystem::path> commit_directory(const std::filesystem::path& partial,
                                                      const std::filesystem::path& target);

}  // namespace teratron
