#include "teratron/train/loop/pretrain.h"

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace {

void save_resolved(const ParsedArguments& parsed) {
  const std::filesystem::path folder = run_directory(parsed.args);
  if (folder.empty()) return;
  try {
    make_directories(folder, ExitCode::config);
    write_text(folder / "config.yaml", resolved_yaml(parsed), ExitCode::config);
  } catch (const UserError& error) {  // a training does not depend on it
    warn("the settings were not saved: {}", error.what());
  }
}

}  // namespace

ExitCode pretrain(const ParsedArguments& parsed, World& world, const StopSignals& signals,
                  const JobModel& model, const TextSamplerFactory& make_sampler) {
  const Arguments& args = parsed.args;
  const Mesh mesh(mesh_options(args), world);
  if (mesh.rank() == 0) {
    print(
        "using world size: {}, data-parallel-size: {}, {}tensor-model-parallel size: {}, "
        "pipeline-model-parallel size: {} ",
        mesh.world_size(), *args.data_parallel_size,
        args.context_parallel_size > 1
            ? fmt::format("context-parallel size: {}, ", args.context_parallel_size)
            : "",
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size);
    print_line(dump_changes(parsed));
  }
  TrainLoop loop(args, mesh, signals, model);
  loop.sample_texts(make_sampler);
  if (loop.load()) {
    if (mesh.rank() == 0) {
      print(
          "training is already finished: {} holds iteration {}. Use --fresh to train again, or raise "
          "--train-iters and add --override-opt-param-scheduler to continue.",
          loop.trainer().resumed_folder(), loop.state().iteration);
    }
    return ExitCode::ok;
  }
  if (mesh.rank() == 0) save_resolved(parsed);
  loop.train();
  return loop.finish();
}

}  // namespace teratron
