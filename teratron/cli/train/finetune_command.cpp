#include <algorithm>
#include <iterator>

#include <fmt/ranges.h>

#include "teratron/base/config/flag_reader.h"
#include "teratron/base/config/help_view.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/train/finetune_data.h"
#include "teratron/cli/train/finetune_defaults.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/comm/launch_env.h"
#include "teratron/tasks/training_texts.h"
#include "teratron/tokenizer/chat/chat_template.h"
#include "teratron/train/classification/classification.h"
#include "teratron/train/loop/pretrain.h"

namespace teratron {

namespace {

// --task of the flags or of the configuration file; what is wrong with them is reported later.
std::optional<std::string> task_of(std::span<const std::string> args, const JobModel& model) {
  const bool named = std::ranges::any_of(args, [](const std::string& arg) {
    return arg.starts_with("--task") || arg.starts_with("--config-file") || arg.starts_with("--yaml-cfg");
  });
  return named ? flag_arguments(args, model).args.task : std::nullopt;
}

// Without the words for help, which keep other flags from being read.
std::vector<std::string> finetuning_flags(std::span<const std::string> args) {
  std::vector<std::string> flags = {"--finetune"};
  std::ranges::remove_copy_if(args, std::back_inserter(flags),
                              [](const std::string& arg) { return is_help(arg) || arg == "--help-all"; });
  return flags;
}

int run_finetuning(std::span<const std::string> args, const JobModel& model) {
  return run_job(args, model, [&](const ParsedArguments& parsed, World& world, const StopSignals& signals) {
    return pretrain(parsed, world, signals, model, make_text_sampler);
  });
}

void check_learns_texts(const Family& family) {
  if (family.learns_conversations || family.on_texts) return;
  throw config_error({.what = fmt::format("{} does not learn conversations", family.name),
                      .where = "finetune",
                      .fix = "Use `teratron finetune gpt FLAGS...`, or --task classification or regression"});
}

void check_has_texts(const Family& family, const ParsedArguments& parsed) {
  const Arguments& args = parsed.args;
  const bool has_data = !args.data_path.empty() || !args.train_data_path.empty() ||
                        !args.valid_data_path.empty() || args.data_args_path || args.per_split_data_args_path;
  if (has_data || !parsed.problems.empty()) return;
  throw config_error({.what = fmt::format("{} does not learn conversations", family.name),
                      .where = "finetune",
                      .fix = "Give --data-path with texts, of which it learns masked words, or --task "
                             "classification or regression with labelled ones"});
}

std::string batch_line(const BatchRows& batch) {
  return batch.examples_in_row > 1
             ? fmt::format(
                   "a row holds about {:.0f} examples of these data: --global-batch-size {} in place of "
                   "16 rows",
                   batch.examples_in_row, batch.rows)
             : fmt::format("--global-batch-size {} in place of 16, which these ranks do not divide",
                           batch.rows);
}

// The command that talks to what the finetuning wrote; "" where the model has no chat template.
std::string chat_line(const Arguments& args, const Family& family) {
  const bool chats = family.learns_conversations && family.name != "t5" && args.hf &&
                     choose_chat_template(std::nullopt, *args.hf);
  if (chats && args.hf_out) return fmt::format("talk to it: teratron chat --hf {}", *args.hf_out);
  if (chats && args.lora_out)
    return fmt::format("talk to it: teratron chat --hf {} --lora {}", *args.hf, *args.lora_out);
  return "";
}

// With defaults for what the user left open.
int run_with_defaults(std::vector<std::string> flags, std::span<const std::string> args,
                      const JobModel& model) {
  flags.insert(flags.end(), args.begin(), args.end());
  std::vector<std::string> defaults = finetune_defaults(flags, model);
  const LaunchEnv launch = read_launch_env(process_environment);
  if (launch.rank == 0) print_line(fmt::format("defaults of finetune: {}", fmt::join(defaults, " ")));
  std::vector<std::string> all = defaults;
  all.insert(all.end(), flags.begin(), flags.end());
  if (const auto batch = std::ranges::find(defaults, "--global-batch-size"); batch != defaults.end()) {
    const BatchRows rows = rows_of_batch(flag_arguments(all, model).args, model.family, launch.size);
    std::string& given = all[static_cast<size_t>(batch - defaults.begin()) + 1];
    if (launch.rank == 0 && given != std::to_string(rows.rows)) print_line(batch_line(rows));
    given = std::to_string(rows.rows);
  }
  const int code = run_finetuning(all, model);
  const std::string next = chat_line(flag_arguments(all, model).args, model.family);
  if (code == 0 && launch.rank == 0 && !next.empty()) print_line(next);
  return code;
}

// An encoder: a classification head if the data have labels or the user asks for one, else masked words.
int finetune_encoder(std::span<const std::string> args, const HfModel& model, const JobModel& job) {
  const auto asks = [&](const std::string& flag) {
    return std::ranges::any_of(
        args, [&](const std::string& arg) { return arg == flag || arg.starts_with(flag + "="); });
  };
  std::optional<std::string> task = task_of(args, job);
  const bool is_classifier = model.family->family != job.family.name;
  std::vector<std::string> flags = {"--finetune"};
  if (!task && is_classifier) task = model.settings.at("task").get<std::string>();
  if (!task && (asks("--train-data") || asks("--num-classes"))) task = "classification";
  if (!task) {
    const std::optional<LabelKind> labels = labels_in_data(flag_arguments(args, job).args);
    if (!labels) return run_with_defaults(flags, args, {job.family.on_texts(), job.registry});
    task = labels->are_classes ? "classification" : "regression";
    if (labels->are_classes) {
      flags.emplace_back("--num-classes");
      flags.push_back(std::to_string(labels->classes));
    }
  }
  flags.emplace_back("--task");
  flags.push_back(*task);
  const ClassificationJob head = classification_job(job.family, *task);
  return run_with_defaults(flags, args, {head.family, head.registry});
}

// The family, and what the user left open, from the folder of --hf.
int finetune_hf(std::span<const std::string> args, const Registry& registry) {
  const HfModel model = model_of_hf_flag(args);
  std::string_view name = model.family->family;
  constexpr std::string_view classifier = "_classifier";
  if (name.ends_with(classifier)) name.remove_suffix(classifier.size());
  const Family& family = find_family(name, registry.families);
  check_learns_texts(family);
  if (family.on_texts) return finetune_encoder(args, model, {family, registry});
  return run_with_defaults({"--finetune", "--sft"}, args, {family, registry});
}

}  // namespace

int finetune_command(std::span<const std::string> args, const Registry& registry) {
  const bool names_family = args.empty() || !args[0].starts_with("-");
  if (!names_family && asks_for_help(args)) {
    const bool asks_for_more = args.size() > 1 || args[0] == "--help-all";  // --help lr: GPT's flags
    print_line(asks_for_more ? training_help_view("finetune gpt",
                                                  {find_family("gpt", registry.families), registry}, args)
                             : finetune_page());
    return 0;
  }
  if (!names_family) return finetune_hf(args, registry);
  const Family& family = find_family(args.empty() ? "" : args[0], registry.families);
  const std::string command = fmt::format("finetune {}", family.name);
  std::vector<std::string> flags = finetuning_flags(args.subspan(1));
  const bool help = asks_for_help(args);
  const auto run_or_help = [&](const JobModel& model) {
    if (!help) return run_finetuning(flags, model);
    print_line(training_help_view(command, model, args.subspan(1)));
    return 0;
  };
  if (const std::optional<std::string> task = task_of(flags, {family, registry})) {
    const ClassificationJob job = classification_job(family, *task);
    return run_or_help({job.family, job.registry});
  }
  if (help && !family.learns_conversations) {
    print_line(finetune_page());
    return 0;
  }
  check_learns_texts(family);
  if (family.on_texts) {
    const Family texts = family.on_texts();
    check_has_texts(texts, flag_arguments(flags, {texts, registry}));
    return run_finetuning(flags, {texts, registry});
  }
  flags.emplace_back("--sft");
  return run_or_help({family, registry});
}

}  // namespace teratron
