#include "teratron/cli/pretrain_command.h"

#include <ATen/Parallel.h>

#include "teratron/base/log.h"
#include "teratron/comm/single_world.h"
#include "teratron/train/pretrain.h"

namespace teratron {

int pretrain_command(std::span<const std::string> args) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    print_line(arguments_help("teratron pretrain gpt [FLAGS]"));
    return 0;
  }
  if (args.empty() || args[0] != "gpt") {
    throw config_error({.what = args.empty() ? "no model was named"
                                             : fmt::format("'{}' cannot be pretrained", printable(args[0])),
                        .where = "pretrain",
                        .fix = "Write `teratron pretrain gpt FLAGS...`"});
  }
  ParsedArguments parsed = parse_arguments("pretrain gpt", args.subspan(1));
  if (parsed.help) {
    print_line(arguments_help("teratron pretrain gpt [FLAGS]"));
    return 0;
  }
  SingleWorld world;
  finish(parsed, world.size());
  if (parsed.args.num_threads) at::set_num_threads(static_cast<int>(*parsed.args.num_threads));
  return static_cast<int>(pretrain(parsed, world, StopSignals()));
}

}  // namespace teratron
