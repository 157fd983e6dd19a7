#include "teratron/settings/own_run.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "teratron/ckpt/directory.h"

namespace teratron {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

bool is_restart(const Environment& environment) {
  for (const char* const name : {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
    if (environment(name).value_or("0") != "0") return true;
  }
  return false;
}

bool has_setting(const CheckpointInfo& checkpoint, const char* name, const json& value) {
  return json::parse(checkpoint.config).value(name, json()) == value;
}

// Whether an earlier start of this job, which had put aside what was there, wrote the checkpoint.
bool is_of_this_job(const std::optional<CheckpointInfo>& checkpoint) {
  const std::string name = job_name(process_environment);
  return checkpoint && !name.empty() && is_restart(process_environment) &&
         has_setting(*checkpoint, "job", name);
}

// --ckpt-step belongs to --load if that is another folder.
std::optional<int64_t> step_back(const Arguments& args, const std::optional<CheckpointInfo>& last) {
  if (!args.ckpt_step || (args.load && loads_elsewhere(args))) return std::nullopt;
  // A second start of that command goes on from what the first has saved.
  if (last && has_setting(*last, "ckpt_step", *args.ckpt_step)) return std::nullopt;
  return args.ckpt_step;
}

}  // namespace

bool loads_elsewhere(const Arguments& args) {
  if (!args.load || !args.save) return args.load.has_value();
  const auto canonical = [](const std::string& folder) {
    std::error_code ignored;
    const fs::path path = fs::weakly_canonical(folder, ignored).lexically_normal();
    return path.has_filename() ? path : path.parent_path();  // "run/"
  };
  return canonical(*args.load) != canonical(*args.save);
}

bool reads_load(const Arguments& args) {
  if (!args.load || !args.fresh) return args.load.has_value();
  return args.save ? loads_elsewhere(args) : args.finetune;
}

std::optional<CheckpointInfo> last_checkpoint(const std::string& directory,
                                              std::optional<int64_t> iteration) {
  std::error_code ignored;
  if (fs::is_regular_file(directory, ignored)) return std::nullopt;  // of another format
  std::vector<fs::path> paths = list_checkpoints(directory);
  if (fs::exists(fs::path(directory) / "manifest.json", ignored)) paths = {directory};
  for (const fs::path& path : paths) {
    try {
      CheckpointInfo info = open_checkpoint(path);
      if (!iteration || info.iteration == *iteration) return info;
    } catch (const UserError&) {
      continue;  // loading reports its error
    }
  }
  return std::nullopt;
}

std::optional<OwnRun> find_own_run(const Arguments& args) {
  std::error_code ignored;
  if (!args.save || !fs::is_directory(*args.save, ignored) || (args.skip_train && args.load))
    return std::nullopt;
  if (!has_held_checkpoints(*args.save)) return std::nullopt;
  OwnRun run{.last = last_checkpoint(*args.save)};
  if (args.fresh && !is_of_this_job(run.last)) return std::nullopt;
  run.iteration = step_back(args, run.last);
  run.finetunes = run.last && has_setting(*run.last, "finetune", true);
  return run;
}

std::string job_name(const Environment& environment) {
  if (const auto own = environment("TERATRON_JOB_NAME")) return *own;
  if (const auto elastic = environment("TORCHELASTIC_RUN_ID"))
    return fmt::format("{} of agent {} on {}", *elastic, getppid(), host_name());
  if (const auto slurm = environment("SLURM_JOB_ID")) return "Slurm job " + *slurm;
  return "";
}

}  // namespace teratron
