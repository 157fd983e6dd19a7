// Trainer: loading and saving checkpoints.
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "teratron/base/log.h"
#include "teratron/ckpt/background_removal.h"
#include "teratron/ckpt/directory.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/settings/checkpoint_args.h"
#include "teratron/telemetry/metrics_logger.h"
#include "teratron/train/trainer.h"

namespace teratron {

namespace {

ScheduleLoadRule schedule_rule(const Arguments& args) {
  if (args.override_opt_param_scheduler || args.skip_train) return ScheduleLoadRule::keep_flags;
  if (args.use_checkpoint_opt_param_scheduler) return ScheduleLoadRule::use_checkpoint;
  return ScheduleLoadRule::must_match;
}

}  // namespace

std::string Trainer::config_json() const {
  nlohmann::json config = nlohmann::json::parse(to_json(args_));
  config["model_family"] = family_.name;
  config["tokenizer_vocab_size"] = model().vocabulary;
  if (const auto& lora = engine_->options().lora) {
    config["lora_rank"] = lora->rank;
    config["lora_alpha"] = lora->alpha;
    config["lora_targets"] = lora->targets;
  }
  // The checkpoint may be read from another working directory.
  for (const char* const file : {"vocab_file", "merge_file", "tokenizer_model"}) {
    if (!config.contains(file) || !config[file].is_string()) continue;
    config[file] = std::filesystem::absolute(config[file].get<std::string>()).lexically_normal().string();
  }
  return config.dump();
}

std::optional<CheckpointInfo> Trainer::load_from(const std::string& directory, bool weights_only) {
  const auto info =
      load_model(*engine_, {.directory = directory,
                            .iteration = weights_only ? std::nullopt : args_.ckpt_step,
                            .config = config_json(),
                            .optimizer = !weights_only && !args_.finetune && !args_.no_load_optim,
                            .finetune = weights_only || args_.finetune,
                            .other_family = finetuning_,
                            .own = args_.save == directory});
  if (info && is_first_rank()) {
    print(" loading checkpoint from {} at iteration {}", info->path.string(), info->iteration);
  }
  return info;
}

// --fresh: no later start may resume from the checkpoints of an earlier run.
void Trainer::archive_previous_run() {
  const auto aside = archive_checkpoints(*args_.save, *mesh_.world().communicator);
  if (aside && is_first_rank()) {
    notice("--fresh: the checkpoints of the earlier run were moved to {}", aside->string());
  }
}

// Without --load, new checkpoints are saved among those of an earlier run.
void Trainer::warn_of_previous_run() const {
  if (!is_first_rank() || args_.skip_train) return;
  const std::vector<std::filesystem::path> old = list_checkpoints(*args_.save);
  if (old.empty()) return;
  warn(
      "{} holds checkpoints of an earlier training, the last of them {}. Without --load this training starts "
      "from scratch and saves among them. To continue that training add --load {}; to archive it add --fresh",
      *args_.save, old.front().filename().string(), *args_.save);
}

bool Trainer::load_hf() {
  const auto folder = open_hf(*args_.hf, *mesh_.world().communicator);
  load_model(*engine_, {.config = config_json(),
                        .optimizer = false,
                        .finetune = true,
                        .other_family = finetuning_,
                        .source = folder.get()});
  load_adapters();
  if (is_first_rank()) print(" loading the weights of {}", printable(*args_.hf, 4096));
  return true;
}

bool Trainer::load_pretrained() {
  const std::string& directory = *args_.pretrained_checkpoint;
  if (!load_from(directory, true)) {
    throw checkpoint_error(
        {.what = "no checkpoint found",
         .where = directory,
         .fix = "Correct --pretrained-checkpoint, or leave it out to start from random weights"});
  }
  if (is_first_rank()) notice("finetuning from the weights of {}", directory);
  load_adapters();
  return true;
}

bool Trainer::load() {
  if (args_.fresh && args_.save) archive_previous_run();
  if (args_.save && !args_.fresh && !args_.load) warn_of_previous_run();
  const bool reads_load = args_.load && !args_.fresh;
  if (const auto info = reads_load ? load_from(*args_.load, false) : std::nullopt) {
    if (args_.hf && is_first_rank())
      notice("--load holds a checkpoint, which goes before --hf: the weights of {} are not loaded",
             printable(*args_.hf, 4096));
    if (args_.finetune) {
      load_adapters();
      return true;
    }
    state_.load(info->state, schedule_rule(args_));
    train_iters_ = planned_iters();
    size_data();
    if (args_.no_load_optim) state_.optimizer_steps = 0;
    engine_->optimizer().set_steps(state_.optimizer_steps);
    saved_iteration_ = args_.save == args_.load ? state_.iteration : -1;
    if (!is_first_rank() || args_.skip_train) return true;
    for (const std::string& line : resume_notices(info->config, config_json())) notice_line(line);
    return true;
  }
  if (args_.hf) return load_hf();
  if (args_.pretrained_checkpoint) return load_pretrained();
  if (reads_load) reject_hf_folder(*args_.load);
  if (reads_load && args_.exit_on_missing_checkpoint) {
    throw checkpoint_error(
        {.what = "no checkpoint found",
         .where = *args_.load,
         .fix = "Correct --load, or leave out --exit-on-missing-checkpoint to start from random weights"});
  }
  if (is_first_rank()) tell_random_weights(reads_load);
  return false;
}

void Trainer::tell_random_weights(bool reads_load) const {
  const bool finetunes = args_.finetune || !finetuning_.family.empty();
  if (reads_load) {
    const std::string line = fmt::format("no checkpoint in {}: starting from random weights", *args_.load);
    args_.load == args_.save && !finetunes ? notice_line(line) : warning_line(line);
  } else if (finetunes) {
    warn("finetuning starts from random weights: {}",
         args_.load ? "--fresh leaves out --load; name a model with --pretrained-checkpoint or --hf"
                    : "name a model with --pretrained-checkpoint, --load or --hf");
  }
}

void Trainer::prepare_saves() {
  if (saves_are_prepared_ || !args_.async_save || !args_.save) return;
  saves_are_prepared_ = true;
  snapshot_memory_ = std::make_shared<SnapshotMemory>(device_);
  prepare_save(*engine_, !args_.no_save_optim, *snapshot_memory_);
}

std::optional<SaveMetrics> Trainer::save() {
  finish_save();
  if (!removal_) removal_ = std::make_shared<BackgroundRemoval>();
  PendingSave current{.iteration = state_.iteration};
  SaveRequest request{
      .directory = args_.save.value(),
      .iteration = state_.iteration,
      .config = config_json(),
      .state = state_.to_json(),
      .retain = {.interval = args_.save_retain_interval.value_or(0), .last = args_.keep_last.value_or(0)},
      .removal = removal_};
  prepare_saves();
  if (snapshot_memory_ && start_save(current, request)) {
    save_progress_ = 0;
    saving_ = std::move(current);
    return std::nullopt;
  }
  return committed(current, save_model(*engine_, std::move(request), !args_.no_save_optim));
}

// False if a rank has no memory for the copy: then this save and all later ones are synchronous.
bool Trainer::start_save(PendingSave& save, const SaveRequest& request) {
  try {
    auto [writer, snapshot] = save_model_async(*engine_, request, !args_.no_save_optim, snapshot_memory_);
    save.writer = std::move(writer);
    save.snapshot = std::move(snapshot);
    return true;
  } catch (const Fault& fault) {
    if (fault.exit_code() != ExitCode::out_of_memory) throw;
    if (is_first_rank()) warn("--async-save: {}. Training waits for every save from now on", fault.what());
    snapshot_memory_.reset();
    return false;
  }
}

std::optional<SaveMetrics> Trainer::continue_save() {
  if (!saving_) return std::nullopt;
  PendingSave current = *std::exchange(saving_, std::nullopt);  // it has ended if it throws
  const auto saved = current.writer->advance(save_progress_);
  if (saved) return committed(current, *saved);
  saving_ = std::move(current);
  return std::nullopt;
}

std::optional<SaveMetrics> Trainer::finish_save() {
  if (!saving_) return std::nullopt;
  const PendingSave current = *std::exchange(saving_, std::nullopt);
  return committed(current, current.writer->finish());
}

SaveMetrics Trainer::committed(const PendingSave& save, const SavedCheckpoint& saved) {
  saved_iteration_ = save.iteration;
  return {
      .iteration = save.iteration, .directory = *args_.save, .seconds = saved.seconds, .bytes = saved.bytes};
}

}  // namespace teratron
