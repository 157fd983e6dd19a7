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
          "--train-iters to go on.",
          *args.load, run.state().iteration);
    }
    return ExitCode::ok;
  }
  run.train();
  if (run.stopped_by_signal()) {
    if (args.save && !run.saved_last_iteration()) run.save();
    if (!args.save && mesh.rank() == 0)
      warn("stopped by a signal, and nothing was saved: there is no --save");
    run.finish();
    return ExitCode::stopped;
  }
  const std::string where = fmt::format("iteration {} on ", run.state().iteration);
  run.evaluate(Split::valid, where + "validation set");
  if (args.save && run.state().iteration > 0 && !run.saved_last_iteration()) run.save();
  run.evaluate(Split::test, where + "test set");
  run.finish();
  return ExitCode::ok;
}

}  // namespace teratron
