#include "teratron/cli/training_arguments.h"

#include <algorithm>
#include <deque>

#include <fmt/ranges.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/config/help_view.h"
#include "teratron/base/strings.h"
#include "teratron/hf/architecture.h"
#include "teratron/hf/peft.h"
#include "teratron/megatron/load_source.h"

namespace teratron {

namespace {

std::vector<Field> extra_fields(const JobModel& model) {
  return joined({model.family.fields.begin(), model.family.fields.end()}, model.registry.fields);
}

std::vector<ArgsDefault> args_defaults(const JobModel& model) {
  std::vector<ArgsDefault> defaults = model.family.args_defaults;
  const std::vector<ArgsDefault>& programs = model.registry.args_defaults;
  defaults.insert(defaults.end(), programs.begin(), programs.end());
  return defaults;
}

Arguments default_arguments(const JobModel& model) {
  Arguments args;
  for (const auto& [name, text] : args_defaults(model)) {
    const Schema::Target* const target = arguments_schema().find(name);
    if (!target || !target->field) continue;
    Problem problem;
    const std::string words[] = {std::string(text)};
    const Value value = parse_value(*target->field, words, problem);
    if (problem.what.empty()) set_value(*target->field, value, &args);
  }
  return args;
}

// A check may throw where it needs settings that only a training has.
bool refuses(const Family& family, Arguments args, const Field& field, const std::string& choice) {
  set_value(field, choice, &args);
  std::vector<Problem> problems;
  try {
    family.check(args, problems);
  } catch (const std::exception&) {
    return false;
  }
  return std::ranges::find(problems, flag_of(field.name), &Problem::where) != problems.end();
}

// The rows of which the family's check takes some choices alone, with these, which `texts` holds.
std::vector<Field> narrowed_fields(const JobModel& model, std::deque<std::string>& texts) {
  std::vector<Field> fields;
  const Family& family = model.family;
  if (!family.check) return fields;
  const Arguments defaults = default_arguments(model);
  for (const Field& field : arguments_schema().fields()) {
    if (is_list(field.type) || field.traits.choices.empty()) continue;
    std::vector<std::string> choices = split(field.traits.choices, '|');
    const size_t refused = std::erase_if(
        choices, [&](const std::string& choice) { return refuses(family, defaults, field, choice); });
    if (refused == 0 || choices.empty()) continue;  // none of them: it is refused for another reason
    fields.push_back(field);
    fields.back().traits.choices = texts.emplace_back(fmt::format("{}", fmt::join(choices, "|")));
  }
  return fields;
}

// The rank, alpha and targets of --lora.
void use_adapter_config(ParsedArguments& parsed) {
  Arguments& args = parsed.args;
  if (!args.lora) return;
  for (const char* const name : {"lora_rank", "lora_alpha", "lora_targets"}) {
    if (!parsed.sources.contains(name)) continue;
    parsed.problems.push_back(
        {.what = fmt::format("{} is given, but the adapters of --lora have their own", name),
         .where = "--lora",
         .fix = "Leave one of them out"});
  }
  const PeftConfig config = read_peft_config(*args.lora);
  args.lora_rank = config.rank;
  args.lora_alpha = config.alpha;
  args.lora_targets = config.targets;
  for (const char* const name : {"lora_rank", "lora_alpha", "lora_targets"})
    parsed.sources[name] = *args.lora;
  if (parsed.sources.contains("lora_dropout")) return;
  args.lora_dropout = config.dropout;
  parsed.sources["lora_dropout"] = *args.lora;
}

// The family's own settings of the model that the user did not set.
void use_family_settings(ParsedArguments& parsed, const SavedSettings& saved, const Family& family) {
  std::vector<std::string> taken;
  for (const std::string& name : read_family_settings(family, saved.config, saved.path, parsed.sources)) {
    parsed.sources[name] = "checkpoint";
    const auto field = std::ranges::find(family.fields, name, &Field::name);
    taken.push_back(fmt::format("{}={}", name, printable(python_str(get_value(*field, nullptr)))));
  }
  if (taken.empty()) return;
  parsed.notices.push_back(
      fmt::format("taken from {}: {}", printable(saved.path, 4096), fmt::join(taken, " ")));
}

void add_settings(ParsedArguments& parsed, const std::optional<SavedSettings>& saved, const Family& family) {
  if (saved) {
    use_checkpoint_args(parsed, *saved);
    use_family_settings(parsed, *saved, family);
  }
  use_adapter_config(parsed);
}

}  // namespace

ParsedArguments flag_arguments(std::span<const std::string> args, const JobModel& model) {
  const std::vector<Field> fields = extra_fields(model);
  const std::vector<ArgsDefault> defaults = args_defaults(model);
  return parse_arguments(training_of(model.family), args,
                         {.defer_problems = true,
                          .extra_fields = fields,
                          .defaults = defaults,
                          .architecture = architecture_settings});
}

ParsedArguments given_arguments(std::span<const std::string> args, const JobModel& model) {
  ParsedArguments parsed = flag_arguments(args, model);
  if (!parsed.help) add_settings(parsed, settings_to_start_with(parsed), model.family);
  return parsed;
}

std::optional<SavedSettings> settings_to_start_with(const ParsedArguments& parsed) {
  return read_saved_settings(parsed.args, [&](const std::string& path, std::optional<int64_t> iteration) {
    return read_megatron_settings({.path = path, .step = iteration}, parsed);
  });
}

void finish_arguments(ParsedArguments& parsed, const std::optional<SavedSettings>& saved, int64_t world_size,
                      const JobModel& model, const ValidateOptions& options) {
  add_settings(parsed, saved, model.family);
  if (model.family.check) model.family.check(parsed.args, parsed.problems);
  validate_arguments(parsed, world_size, options);
}

ParsedArguments pretrain_arguments(std::span<const std::string> args, int64_t world_size,
                                   const JobModel& model, const ValidateOptions& options) {
  ParsedArguments parsed = flag_arguments(args, model);
  if (!parsed.help) finish_arguments(parsed, settings_to_start_with(parsed), world_size, model, options);
  return parsed;
}

std::string training_help(std::string_view command, const JobModel& model) {
  const std::string usage = fmt::format("teratron {} [FLAGS]", command);
  const Program program = training_of(model.family);
  std::deque<std::string> choices;
  const std::vector<Field> fields = joined(narrowed_fields(model, choices), extra_fields(model));
  std::vector<ArgsDefault> defaults = args_defaults(model);
  defaults.insert(defaults.begin(), {"tokenizer_type", program.tokenizer_type});
  return arguments_help({usage, program.names}, fields, defaults);
}

namespace {

// The flags of the short --help: of the family's own only what it cannot do without.
std::vector<std::string> main_flags(std::string_view command, const JobModel& model) {
  std::vector<std::string> flags = {"--hf",
                                    "--load",
                                    "--seq-length",
                                    "--decoder-seq-length",
                                    "--data-path",
                                    "--micro-batch-size",
                                    "--lr",
                                    "--global-batch-size",
                                    "--bf16",
                                    "--train-iters",
                                    "--save",
                                    "--num-train-epochs",
                                    "--eval-iters",
                                    "--tensor-model-parallel-size",
                                    "--pipeline-model-parallel-size",
                                    "--config-file",
                                    "--save-interval",
                                    "--log-interval"};
  const std::vector<std::string> pretraining = {
      "--model-preset",         "--num-layers", "--hidden-size",    "--num-attention-heads",
      "--hybrid-layer-pattern", "--mock-data",  "--tokenizer-type", "--tokenizer-model"};
  const std::vector<std::string> finetuning = {"--pretrained-checkpoint", "--lora-rank", "--chat-template",
                                               "--hf-out", "--lora-out"};
  const std::vector<std::string> labels = {
      "--task",   "--num-classes", "--train-data",           "--valid-data",
      "--hf-out", "--lora-rank",   "--pretrained-checkpoint"};
  const bool has_labels = model.family.name.ends_with("_classifier");
  const bool finetunes = command.starts_with("finetune");
  const auto& more = has_labels ? labels : finetunes ? finetuning : pretraining;
  flags.insert(flags.end(), more.begin(), more.end());
  for (const Field& field : model.registry.fields) flags.push_back(flag_of(field.name));
  return flags;
}

std::string example_of(std::string_view command, const JobModel& model) {
  if (command.starts_with("pretrain")) {
    const std::string line = fmt::format("teratron {} {}", command, model.family.example);
    return line.size() <= 96 ? line : fmt::format("teratron {} \\\n  {}", command, model.family.example);
  }
  const bool has_labels = model.family.name.ends_with("_classifier");
  return fmt::format(
      "teratron {} {} FILE{} \\\n"
      "  --seq-length 128 --micro-batch-size 1 --train-iters 100 --lr 1e-5 --eval-iters 0 --hf-out TUNED",
      command, has_labels ? "--task classification --hf DIR --train-data" : "--hf DIR --data-path",
      model.family.name == "t5" ? " --decoder-seq-length 128" : "");
}

}  // namespace

std::string training_help_view(std::string_view command, const JobModel& model,
                               std::span<const std::string> args) {
  return help_view({.command = fmt::format("teratron {}", command),
                    .full = training_help(command, model),
                    .main_flags = main_flags(command, model),
                    .example = example_of(command, model)},
                   args);
}

}  // namespace teratron
