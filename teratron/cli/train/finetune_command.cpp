#include <algorithm>
#include <iterator>

#include "teratron/base/config/flag_reader.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/tasks/training_texts.h"
#include "teratron/train/classification/classification.h"
#include "teratron/train/loop/pretrain.h"

namespace teratron {

namespace {

void print_usage() {
  print_line(
      "usage: teratron finetune gpt FLAGS...\n"
      "       teratron finetune bert|gpt --task classification|regression --train-data FILE\n"
      "                --valid-data FILE FLAGS...\n"
      "\n"
      "The first trains on conversations, with the loss of the assistant's turns, as\n"
      "`teratron pretrain gpt --finetune --sft FLAGS...` does. The second trains a head, and the model\n"
      "below it, on labelled texts.\n"
      "`teratron finetune gpt --help` and `teratron finetune bert --task classification --help` list\n"
      "the flags.");
}

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
  std::ranges::remove_copy_if(args, std::back_inserter(flags), is_help);
  return flags;
}

int run_finetuning(std::span<const std::string> args, const JobModel& model) {
  return run_job(args, model, [&](const ParsedArguments& parsed, World& world, const StopSignals& signals) {
    return pretrain(parsed, world, signals, model, make_text_sampler);
  });
}

}  // namespace

int finetune_command(std::span<const std::string> args, const Registry& registry) {
  if (!args.empty() && is_help(args[0])) {
    print_usage();
    return 0;
  }
  const Family& family = find_family(args.empty() ? "" : args[0], registry.families);
  const std::string command = fmt::format("finetune {}", family.name);
  std::vector<std::string> flags = finetuning_flags(args.subspan(1));
  const bool help = std::ranges::any_of(args, is_help);
  const auto run_or_help = [&](const JobModel& model) {
    if (!help) return run_finetuning(flags, model);
    print_line(training_help(command, model));
    return 0;
  };
  if (const std::optional<std::string> task = task_of(flags, {family, registry})) {
    const ClassificationJob job = classification_job(family, *task);
    return run_or_help({job.family, job.registry});
  }
  if (!family.learns_conversations) {
    if (help) {
      print_usage();
      return 0;
    }
    throw config_error(
        {.what = fmt::format("{} does not learn conversations", family.name),
         .where = "finetune",
         .fix = "Use `teratron finetune gpt FLAGS...`, or --task classification or regression"});
  }
  flags.emplace_back("--sft");
  return run_or_help({family, registry});
}

}  // namespace teratron
