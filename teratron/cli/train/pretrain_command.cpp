#include "teratron/base/config/flag_reader.h"
#include "teratron/base/config/help_view.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/train/run_clm.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/tasks/training_texts.h"
#include "teratron/train/classification/classification.h"
#include "teratron/train/loop/pretrain.h"

namespace teratron {

namespace {

void print_families(const Registry& registry) {
  print_line("usage: teratron pretrain FAMILY FLAGS...\n");
  for (const std::span<const Family> list : {std::span<const Family>(registry.families), families()}) {
    for (const Family& family : list) print("  {:<12}{}", family.name, family.summary);
  }
  print_line("\nexample:\n  teratron pretrain gpt --model-preset gpt2 --mock-data");
  print_line("\n`teratron pretrain FAMILY --help` describes the flags of a family.");
}

}  // namespace

int pretrain_command(std::span<const std::string> args, const Registry& registry) {
  if (!args.empty() && args[0].starts_with("-") && asks_for_help(args)) {
    const bool asks_for_more = args.size() > 1 || args[0] == "--help-all";  // --help lr: GPT's flags
    if (!asks_for_more) {
      print_families(registry);
    } else {
      print_line(training_help_view("pretrain gpt", {find_family("gpt", registry.families), registry}, args));
    }
    return 0;
  }
  const Family& family = find_family(args.empty() ? "" : args[0], registry.families);
  const Registry own =
      is_classifier(family) ? classification_job(family, "classification").registry : registry;
  const JobModel model{family, own};
  if (asks_for_help(args)) {
    print_line(training_help_view(fmt::format("pretrain {}", family.name), model, args.subspan(1)));
    return 0;
  }
  const std::vector<std::string> flags = run_clm_as_ours(args.subspan(1), model);
  return run_job(flags, model, [&](const ParsedArguments& parsed, World& world, const StopSignals& signals) {
    return pretrain(parsed, world, signals, model, make_text_sampler);
  });
}

}  // namespace teratron
