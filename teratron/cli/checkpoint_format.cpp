#include "teratron/cli/checkpoint_format.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/ckpt/directory.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

bool holds(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

bool is_ours(const fs::path& folder) {
  const std::vector<fs::path> saved = list_checkpoints(folder);
  return holds(folder, "manifest.json") ||
         std::ranges::any_of(saved, [](const fs::path& path) { return holds(path, "manifest.json"); });
}

// mp_rank_XX/..., .metadata of torch_dist, or folders of iterations with either.
bool is_megatron(const fs::path& folder) {
  if (holds(folder, ".metadata") || holds(folder, "latest_checkpointed_iteration.txt")) return true;
  return std::ranges::any_of(list_directory(folder, ExitCode::checkpoint), [](const std::string& name) {
    return name.starts_with("mp_rank_") || name.starts_with("iter_") || name == "release";
  });
}

}  // namespace

CheckpointFormat checkpoint_format(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return CheckpointFormat::megatron;
  if (fs::is_directory(path, ignored)) {
    if (is_ours(path)) return CheckpointFormat::teratron;
    if (holds(path, "config.json")) return CheckpointFormat::hugging_face;
    if (is_megatron(path)) return CheckpointFormat::megatron;
  }
  throw checkpoint_error(
      {.what = "there is no checkpoint",
       .where = printable(path.string(), 4096),
       .fix =
           "Name a --save folder or an iter_* folder of Teratron or Megatron-LM, or a Hugging Face folder"});
}

}  // namespace teratron
