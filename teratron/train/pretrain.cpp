#include "teratron/train/pretrain.h"

#include "teratron/base/log.h"
#include "teratron/train/training_run.h"

namespace teratron {

ExitCode pretrain(const ParsedArguments& parsed, World& world, const StopSignals& signals) {
  const Arguments& args = parsed.args;
  const Mesh mesh(mesh_options(args), world);
  if (mesh.rank() == 0) {
    for (const std::string& line : parsed.notices) notice_line(line);
    print_line(dump(args));
  }
  TrainingRun run(args, mesh, signals);
  if (run.load()) {
    if (mesh.rank() == 0) {
      print(
          "training is already finished: {} holds iteration {}. Use --fresh to train again, or raise "
          "--train-iters and add --override-opt_param-scheduler to go on.",
          *args.load, run.state().iteration);
    }
    return ExitCode::ok;
  }
  run.train();
  // What was trained is safe before anything else can fail.
  if (args.save && run.state().iteration > 0 && !run.saved_last_iteration()) run.save();
  if (!args.save && run.stopped_by_signal() && mesh.rank() == 0) {
    warn("stopped by a signal, and nothing was saved: there is no --save");
  }
  if (!run.stopped_early()) {
    const std::string where = fmt::format("iteration {} on ", run.state().iteration);
    run.evaluate(Split::valid, where + "validation set");
    run.evaluate(Split::test, where + "test set");
  }
  run.finish();
  return run.stopped_by_signal() ? ExitCode::stopped : ExitCode::ok;
}

}  // namespace teratron
