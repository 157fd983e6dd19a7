#include "teratron/megatron/checkpoint_format.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/ckpt/directory.h"
#include "teratron/megatron/dist_checkpoint.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

bool holds(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

// Any save will do: which of them is loaded is not asked yet.
bool is_ours(const fs::path& folder) {
  if (holds(folder, "manifest.json")) return true;
  const std::vector<std::string> names = list_directory(folder, ExitCode::checkpoint);
  return std::ranges::any_of(names, [&folder](const std::string& name) {
    return iteration_of(name) && holds(folder / name, "manifest.json");
  });
}

}  // namespace

bool is_hugging_face(const fs::path& path) {
  return holds(path, "config.json") && list_checkpoints(path).empty() && !holds(path, "manifest.json");
}

fs::path locate_checkpoint(const fs::path& directory, std::optional<int64_t> step) {
  SingleHostGroup alone;
  const std::optional<fs::path> found = find_checkpoint(directory, step, alone);
  if (found) return *found;
  throw checkpoint_error({.what = "there is no checkpoint",
                          .where = printable(directory.string(), 4096),
                          .fix = "Name the --save folder of a training run, or one of its iter_* folders"});
}

bool is_megatron(const fs::path& source) {
  std::error_code ignored;
  if (fs::is_regular_file(source, ignored)) return true;
  if (find_dist_folder(source, std::nullopt)) return true;
  const auto has_ranks = [&ignored](const fs::path& folder) {
    for (const char* rank : {"mp_rank_00", "mp_rank_00_000"}) {
      if (fs::is_directory(folder / rank, ignored)) return true;
    }
    return false;
  };
  if (has_ranks(source)) return true;
  for (const std::string& name : list_directory(source, ExitCode::checkpoint)) {
    if ((name.starts_with("iter_") || name == "release") && has_ranks(source / name)) return true;
  }
  return false;
}

std::optional<CheckpointFormat> recognized_format(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return CheckpointFormat::megatron;
  if (!fs::is_directory(path, ignored)) return std::nullopt;
  if (is_ours(path)) return CheckpointFormat::teratron;
  if (holds(path, "config.json")) return CheckpointFormat::hugging_face;
  if (is_megatron(path)) return CheckpointFormat::megatron;
  return std::nullopt;
}

CheckpointFormat checkpoint_format(const fs::path& path) {
  if (const auto format = recognized_format(path)) return *format;
  throw checkpoint_error(
      {.what = "there is no checkpoint",
       .where = printable(path.string(), 4096),
       .fix =
           "Name a --save folder or an iter_* folder of Teratron or Megatron-LM, or a Hugging Face folder"});
}

}  // namespace teratron
