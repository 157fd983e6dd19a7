#include "teratron/train/checkpoint/start.h"

#include <filesystem>

#include "teratron/base/log.h"
#include "teratron/ckpt/directory.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/settings/checkpoint_args.h"
#include "teratron/train/checkpoint/adapters.h"

namespace teratron {

namespace {

std::optional<CheckpointInfo> load_from(const std::string& directory, const LoadOptions& options,
                                        const CheckpointedRun& run) {
  LoadOptions all = options;
  all.directory = directory;
  all.config = run.config;
  all.own = run.args.save == directory;
  const auto info = load_model(run.engine, all);
  if (info && run.is_first_rank())
    print(" loading checkpoint from {} at iteration {}", info->path.string(), info->iteration);
  return info;
}

// --fresh: no later start may resume from the checkpoints of an earlier run.
void archive_previous_run(const CheckpointedRun& run) {
  const auto aside = archive_checkpoints(*run.args.save, run.ranks());
  if (aside && run.is_first_rank())
    notice("--fresh: the checkpoints of the earlier run were moved to {}", aside->string());
}

// Without --load, new checkpoints are saved among those of an earlier run.
void warn_of_previous_run(const CheckpointedRun& run) {
  if (!run.is_first_rank() || run.args.skip_train) return;
  const std::string& save = *run.args.save;
  const std::vector<std::filesystem::path> old = list_checkpoints(save);
  if (old.empty()) return;
  warn(
      "{} holds checkpoints of an earlier training, the last of them {}. Without --load this training starts "
      "from scratch and saves among them. To continue that training add --load {}; to archive it add --fresh",
      save, old.front().filename().string(), save);
}

void load_hf(const CheckpointedRun& run, const Finetuning& finetuning) {
  const auto folder = open_hf(*run.args.hf, run.ranks());
  load_model(run.engine, {.config = run.config,
                          .optimizer = false,
                          .finetune = true,
                          .other_family = finetuning,
                          .source = folder.get()});
  load_adapters(run);
  if (run.is_first_rank()) print(" loading the weights of {}", printable(*run.args.hf, 4096));
}

void load_pretrained(const CheckpointedRun& run, const Finetuning& finetuning) {
  const std::string& directory = *run.args.pretrained_checkpoint;
  if (!load_from(directory, {.optimizer = false, .finetune = true, .other_family = finetuning}, run)) {
    throw checkpoint_error(
        {.what = "no checkpoint found",
         .where = directory,
         .fix = "Correct --pretrained-checkpoint, or leave it out to start from random weights"});
  }
  if (run.is_first_rank()) notice("finetuning from the weights of {}", directory);
  load_adapters(run);
}

// The checkpoint of --load; nothing if there is none.
std::optional<Start> load_own(const CheckpointedRun& run, const Finetuning& finetuning) {
  const Arguments& args = run.args;
  auto info = load_from(*args.load,
                        {.iteration = args.ckpt_step,
                         .optimizer = !args.finetune && !args.no_load_optim,
                         .finetune = args.finetune,
                         .other_family = finetuning},
                        run);
  if (!info) return std::nullopt;
  if (args.hf && run.is_first_rank())
    notice("--load holds a checkpoint, which goes before --hf: the weights of {} are not loaded",
           printable(*args.hf, 4096));
  if (!args.finetune) return Start{.resumed = std::move(info), .has_weights = true};
  load_adapters(run);
  return Start{.has_weights = true};
}

// `reads_load`: although --load was searched for a checkpoint.
void log_random_weights(const CheckpointedRun& run, const Finetuning& finetuning, bool reads_load) {
  const Arguments& args = run.args;
  const bool finetunes = args.finetune || !finetuning.family.empty();
  if (reads_load) {
    const std::string line = fmt::format("no checkpoint in {}: starting from random weights", *args.load);
    args.load == args.save && !finetunes ? notice_line(line) : warning_line(line);
  } else if (finetunes) {
    warn("finetuning starts from random weights: {}",
         args.load ? "--fresh leaves out --load; name a model with --pretrained-checkpoint or --hf"
                   : "name a model with --pretrained-checkpoint, --load or --hf");
  }
}

}  // namespace

Start load_start(const CheckpointedRun& run, const Finetuning& finetuning) {
  const Arguments& args = run.args;
  if (args.fresh && args.save) archive_previous_run(run);
  if (args.save && !args.fresh && !args.load) warn_of_previous_run(run);
  const bool reads_load = args.load && !args.fresh;
  if (reads_load) {
    if (auto start = load_own(run, finetuning)) return *std::move(start);
  }
  if (args.hf) {
    load_hf(run, finetuning);
    return {.has_weights = true};
  }
  if (args.pretrained_checkpoint) {
    load_pretrained(run, finetuning);
    return {.has_weights = true};
  }
  if (reads_load) reject_hf_folder(*args.load);
  if (reads_load && args.exit_on_missing_checkpoint) {
    throw checkpoint_error(
        {.what = "no checkpoint found",
         .where = *args.load,
         .fix = "Correct --load, or leave out --exit-on-missing-checkpoint to start from random weights"});
  }
  if (run.is_first_rank()) log_random_weights(run, finetuning, reads_load);
  return {};
}

void print_resume_notices(const CheckpointedRun& run, const CheckpointInfo& resumed) {
  if (!run.is_first_rank() || run.args.skip_train) return;
  for (const std::string& line : resume_notices(resumed.config, run.config)) notice_line(line);
}

}  // namespace teratron
