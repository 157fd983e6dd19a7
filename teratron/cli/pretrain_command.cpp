#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/run_job.h"
#include "teratron/train/pretrain.h"

namespace teratron {

int pretrain_command(std::span<const std::string> args, const Registry& registry) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    print_line(arguments_help("teratron pretrain gpt [FLAGS]", registry.fields));
    return 0;
  }
  if (args.empty() || args[0] != "gpt") {
    throw config_error({.what = args.empty()
                                    ? "no model given"
                                    : fmt::format("'{}' is not a supported model", printable(args[0])),
                        .where = "pretrain",
                        .fix = "Use `teratron pretrain gpt FLAGS...`"});
  }
  return run_job(args.subspan(1), registry,
                 [&](const ParsedArguments& parsed, World& world, const StopSignals& signals) {
                   return pretrain(parsed, world, signals, registry);
                 });
}

}  // namespace teratron
