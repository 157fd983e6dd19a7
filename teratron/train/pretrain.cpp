#include "teratron/train/pretrain.h"

#include "teratron/base/log.h"
#include "teratron/hf/architecture.h"
#include "teratron/settings/checkpoint_args.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/train_loop.h"

namespace teratron {

ParsedArguments pretrain_arguments(std::span<const std::string> args, int64_t world_size,
                                   const Registry& registry) {
  ParsedArguments parsed = parse_arguments(
      "pretrain gpt", args,
      {.defer_problems = true, .extra_fields = registry.fields, .architecture = architecture_settings});
  if (parsed.help) return parsed;
  use_checkpoint_args(parsed);
  validate_arguments(parsed, world_size);
  return parsed;
}

ExitCode pretrain(const ParsedArguments& parsed, World& world, const StopSignals& signals,
                  const Registry& registry) {
  const Arguments& args = parsed.args;
  const Mesh mesh(mesh_options(args), world);
  if (mesh.rank() == 0) {
    print(
        "using world size: {}, data-parallel-size: {}, tensor-model-parallel size: {}, "
        "pipeline-model-parallel size: {} ",
        mesh.world_size(), *args.data_parallel_size, args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size);
    print_line(dump(parsed));
  }
  TrainLoop loop(args, mesh, signals, registry);
  if (loop.load()) {
    if (mesh.rank() == 0) {
      print(
          "training is already finished: {} holds iteration {}. Use --fresh to train again, or raise "
          "--train-iters and add --override-opt_param-scheduler to continue.",
          *args.load, loop.state().iteration);
    }
    return ExitCode::ok;
  }
  loop.train();
  return loop.finish();
}

}  // namespace teratron
