#include "teratron/train/checkpoint/start.h"

#include <nlohmann/json.hpp>

#include "teratron/base/log.h"
#include "teratron/comm/collective_errors.h"
#include "teratron/hf/hf_checkpoint.h"
#include "teratron/megatron/load_source.h"
#include "teratron/models/family_formats.h"
#include "teratron/settings/checkpoint_args.h"
#include "teratron/train/checkpoint/adapters.h"

namespace teratron {

namespace {

std::vector<std::string> own_names(const Family& family) {
  std::vector<std::string> names;
  for (const FamilyField& field : family.fields) {
    if (field.storage) names.emplace_back(field.name);
  }
  return names;
}

// What Megatron-LM released has neither an iteration nor an optimizer's state: its weights are loaded.
void load_weights_of_release(LoadOptions& options, const CheckpointedRun& run) {
  if (!options.finetune && run.is_first_rank())
    notice("it is a release without training state: the training starts at iteration 0 from its weights");
  options.optimizer = options.evaluates = false;
  options.finetune = true;
}

// Saving into it would make Megatron-LM look for an iteration that it cannot read, and might prune what it
// can read.
[[noreturn]] void refuse_foreign_folder(const std::string& save) {
  throw checkpoint_error(
      {.what = "the folder holds checkpoints of Megatron-LM, to which none of ours are added",
       .where = printable(save, 4096),
       .fix = "Name it with --load, and another folder with --save"});
}

// From a checkpoint of ours or of Megatron-LM.
std::optional<CheckpointInfo> load_from(const std::string& directory, const LoadOptions& options,
                                        const CheckpointedRun& run) {
  LoadOptions all = options;
  all.directory = directory;
  all.config = run.config;
  all.family_fields = own_names(run.family);
  all.own = run.args.save == directory || (run.args.load == directory && !loads_elsewhere(run.args));
  all.nodes = run.folders;
  const auto megatron = open_megatron_source(
      import_for({.path = directory, .step = options.iteration, .optimizer = options.optimizer}, run.config),
      run.ranks());
  if (megatron && run.args.save && all.own) refuse_foreign_folder(*run.args.save);
  all.source = megatron.get();
  if (megatron && megatron->is_release()) load_weights_of_release(all, run);
  const auto info = load_model(run.engine, all);
  if (info && run.is_first_rank())
    print(" loading checkpoint from {} at iteration {}", info->path.string(), info->iteration);
  return info;
}

bool has_training_state(const CheckpointInfo& info) {
  return !nlohmann::json::parse(info.state).empty();
}

// --fresh: no later start may resume from the checkpoints of an earlier run.
void archive_previous_run(const CheckpointedRun& run) {
  const auto aside = archive_checkpoints(*run.args.save, run.folders.get(), run.ranks());
  if (aside && run.is_first_rank())
    notice("--fresh: the checkpoints of the earlier run were moved to {}", aside->string());
}

// What a run that goes on does not read again.
void note_unread_sources(const Arguments& args, const std::string& folder) {
  const std::pair<const char*, std::optional<std::string>> sources[] = {
      {"--load", loads_elsewhere(args) ? args.load : std::nullopt},
      {"--hf", args.hf},
      {"--pretrained-checkpoint", args.pretrained_checkpoint},
      {"--lora", args.lora}};
  for (const auto& [flag, source] : sources) {
    if (!source) continue;
    notice("{} holds a checkpoint, which goes before {}: the weights of {} are not loaded", folder, flag,
           printable(*source, 4096));
  }
}

Start load_own_run(const CheckpointedRun& run, const OwnRun& own) {
  const Arguments& args = run.args;
  auto info = load_from(*args.save,
                        {.iteration = own.iteration,
                         .optimizer = !args.no_load_optim && !args.skip_train,
                         .evaluates = args.skip_train},
                        run);
  TERATRON_ASSERT(info, "{} held a checkpoint", *args.save);
  if (run.is_first_rank()) {
    note_unread_sources(args, *args.save);
    if (args.ckpt_step && !own.iteration && !loads_elsewhere(args))
      notice("--ckpt-step {}: the run has gone on from there to iteration {}, and goes on from this one",
             *args.ckpt_step, info->iteration);
  }
  return {.resumed = std::move(info), .folder = *args.save, .has_weights = true};
}

// Heads of this model that the folder lacks.
void note_new_heads(const HfCheckpoint& folder, const Finetuning& finetuning) {
  std::vector<std::string> heads;
  for (const std::string& head : folder.missing_heads()) {
    if (std::ranges::find(finetuning.starts_anew, head) != finetuning.starts_anew.end())
      heads.push_back(head.substr(0, head.size() - 1));
  }
  if (!heads.empty()) {
    notice("{} has no weights of {}, which begin anew with random ones",
           printable(folder.info().path.string(), 4096), fmt::join(heads, ", "));
  }
}

void load_hf(const CheckpointedRun& run, const Finetuning& finetuning) {
  const auto folder =
      open_hf(*run.args.hf, run.ranks(), run.args.finetune ? HfHeads::may_lack : HfHeads::required);
  load_model(run.engine, {.config = run.config,
                          .optimizer = false,
                          .finetune = true,
                          .other_family = finetuning,
                          .source = folder.get()});
  load_adapters(run);
  if (!run.is_first_rank()) return;
  note_new_heads(*folder, finetuning);
  print(" loading the weights of {}", printable(*run.args.hf, 4096));
}

void load_pretrained(const CheckpointedRun& run, const Finetuning& finetuning) {
  const std::string& directory = *run.args.pretrained_checkpoint;
  if (!load_from(directory, {.optimizer = false, .finetune = true, .other_family = finetuning}, run)) {
    throw no_pretrained_checkpoint(directory);
  }
  if (run.is_first_rank()) notice("finetuning from the weights of {}", directory);
  load_adapters(run);
}

// The checkpoint of --load; nothing if there is none.
std::optional<Start> load_other(const CheckpointedRun& run, const Finetuning& finetuning) {
  const Arguments& args = run.args;
  auto info = load_from(*args.load,
                        {.iteration = args.ckpt_step,
                         .optimizer = !args.finetune && !args.no_load_optim && !args.skip_train,
                         .evaluates = args.skip_train && !args.finetune,
                         .finetune = args.finetune,
                         .other_family = finetuning},
                        run);
  if (!info) return std::nullopt;
  if (args.hf && run.is_first_rank())
    notice("--load holds a checkpoint, which goes before --hf: the weights of {} are not loaded",
           printable(*args.hf, 4096));
  if (!args.finetune && has_training_state(*info))
    return Start{.resumed = std::move(info), .folder = *args.load, .has_weights = true};
  load_adapters(run);
  return Start{.has_weights = true};
}

void log_random_weights(const Arguments& args, const Finetuning& finetuning) {
  const bool finetunes = args.finetune || !finetuning.family.empty();
  if (reads_load(args)) {
    const std::string line = fmt::format("no checkpoint in {}: starting from random weights", *args.load);
    !loads_elsewhere(args) && !finetunes ? notice_line(line) : warning_line(line);
  } else if (finetunes) {
    warn("finetuning starts from random weights: {}",
         args.load ? "--fresh leaves out --load; name a model with --pretrained-checkpoint or --hf"
                   : "name a model with --pretrained-checkpoint, --load or --hf");
  }
}

nlohmann::json identity_settings(const RunIdentity& identity) {
  nlohmann::json settings = nlohmann::json::parse(to_json(identity.args));
  settings.update(nlohmann::json::parse(family_settings(identity.family)));
  settings["tokenizer_vocab_size"] =
      identity.family.plan(identity.args, identity.tokenizer.vocab_size()).vocabulary;
  return settings;
}

std::vector<Problem> differences(const RunIdentity& identity, const OwnRun& own) {
  const CheckpointInfo& last = *own.last;
  const std::string where = printable(last.path.string(), 4096);
  const nlohmann::json saved = nlohmann::json::parse(last.config);
  if (const std::string family = saved_family(saved); family != identity.family.name) {
    return {{.what = fmt::format("it holds a model of family {}, and this run trains {}", printable(family),
                                 identity.family.name),
             .where = where}};
  }
  std::vector<Problem> problems;
  const std::string current = identity_settings(identity).dump();
  std::vector<std::string> fields = fixed_model_fields(current, false);
  fields.emplace_back("lora_rank");
  for (std::string& name : own_names(identity.family)) fields.push_back(std::move(name));
  try {
    check_same_model({.path = last.path, .config = canonical_config(last.config, where)},
                     canonical_config(current, "this run"), fields, "");
  } catch (const UserError& error) {
    problems = error.problems();
  }
  if (saved.contains("tokenizer_hash") && saved["tokenizer_hash"] != tokenizer_hash(identity.args))
    problems.push_back({.what = "it was trained with another tokenizer", .where = where});
  if (identity.args.finetune && !own.finetunes)
    problems.push_back(
        {.what = "it is of a training without --finetune, and this run finetunes", .where = where});
  return problems;
}

void check_identity(const RunIdentity& identity, const OwnRun& own) {
  std::vector<Problem> problems = differences(identity, own);
  if (problems.empty()) return;
  const std::string save = printable(*identity.args.save, 4096);
  problems.back().fix = fmt::format(
      "{0} holds another run: go on with it by its own command, name another folder with --save (and add "
      "--finetune --load {0} to start from its weights), or add --fresh, which moves its checkpoints to "
      "{0}/replaced-1 and so on",
      save);
  throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace

std::optional<OwnRun> require_own_run(const RunIdentity& identity, HostGroup& ranks) {
  const std::string found = run_on_rank_0(ranks, [&]() -> std::string {
    const std::optional<OwnRun> own = find_own_run(identity.args);
    if (!own) return "";
    if (own->last) check_identity(identity, *own);
    return nlohmann::json({own->iteration.value_or(-1), own->finetunes}).dump();
  });
  if (found.empty()) return std::nullopt;
  const nlohmann::json both = nlohmann::json::parse(found);
  OwnRun own{.finetunes = both[1]};
  if (both[0] >= 0) own.iteration = both[0].get<int64_t>();
  return own;
}

Start load_start(const CheckpointedRun& run, const Finetuning& finetuning, const std::optional<OwnRun>& own) {
  const Arguments& args = run.args;
  if (own) return load_own_run(run, *own);
  if (args.fresh && args.save) archive_previous_run(run);
  if (reads_load(args)) {
    if (auto start = load_other(run, finetuning)) return *std::move(start);
  }
  if (args.hf) {
    load_hf(run, finetuning);
    return {.has_weights = true};
  }
  if (args.pretrained_checkpoint) {
    load_pretrained(run, finetuning);
    return {.has_weights = true};
  }
  if (reads_load(args)) reject_hf_folder(*args.load);
  if (reads_load(args) && args.exit_on_missing_checkpoint) {
    throw checkpoint_error(
        {.what = "no checkpoint found",
         .where = *args.load,
         .fix = "Correct --load, or leave out --exit-on-missing-checkpoint to start from random weights"});
  }
  if (run.is_first_rank()) log_random_weights(args, finetuning);
  return {};
}

void print_resume_notices(const CheckpointedRun& run, const CheckpointInfo& resumed) {
  if (!run.is_first_rank() || run.args.skip_train) return;
  for (const std::string& line : resume_notices(resumed.config, run.config)) notice_line(line);
}

}  // namespace teratron
