#include "teratron/train/pretrain.h"

#include <new>

#include "teratron/base/log.h"
#include "teratron/comm/torch_fault.h"
#include "teratron/train/checkpoint_settings.h"
#include "teratron/train/rank_memory.h"
#include "teratron/train/training_run.h"

namespace teratron {

ParsedArguments pretrain_arguments(std::span<const std::string> args, int64_t world_size,
                                   const Registry& registry) {
  ParsedArguments parsed =
      parse_arguments("pretrain gpt", args, {.defer_problems = true, .own_fields = registry.fields});
  if (parsed.help) return parsed;
  use_checkpoint_args(parsed);
  finish(parsed, world_size);
  return parsed;
}

namespace {

ExitCode train_to_the_end(const Arguments& args, const Mesh& mesh, const StopSignals& signals,
                          const Registry& registry) {
  TrainingRun run(args, mesh, signals, registry);
  if (run.load()) {
    if (mesh.rank() == 0) {
      print(
          "training is already finished: {} holds iteration {}. Use --fresh to train again, or raise "
          "--train-iters and add --override-opt_param-scheduler to go on.",
          *args.load, run.training().state().iteration);
    }
    return ExitCode::ok;
  }
  run.train();
  return run.finish();
}

}  // namespace

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
  try {
    return train_to_the_end(args, mesh, signals, registry);
  } catch (const c10::Error& error) {
    const Fault fault = to_fault(error);
    if (fault.exit_code() != ExitCode::out_of_memory) throw;
    throw explain_out_of_memory(fault, args, mesh.group(Axis::pp).rank);
  } catch (const std::bad_alloc&) {
    throw explain_out_of_memory(Fault("out of host memory", ExitCode::out_of_memory), args,
                                mesh.group(Axis::pp).rank);
  }
}

}  // namespace teratron
