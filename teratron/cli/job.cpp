#include "teratron/cli/job.h"

#include <unistd.h>

#include "teratron/base/log.h"
#include "teratron/train/device/device.h"
#include "teratron/train/engine_options.h"

namespace teratron {
namespace {

/// The last words of a rank that its GPU keeps from leaving.
void leave_at_once(const Fault& fault) {
  error_line(fault.what());
  _exit(static_cast<int>(fault.exit_code()));
}

}  // namespace

WorldOptions world_options(const Arguments& args, const Launch& launch) {
  WorldOptions options{.timeout = std::chrono::minutes(args.distributed_timeout_minutes)};
  if (args.distributed_timeout_seconds_after_init) {
    options.timeout_after_start = std::chrono::seconds(*args.distributed_timeout_seconds_after_init);
  }
  if (choose_device(args).is_cuda()) {
    options.gpu = static_cast<int>(launch.local_rank % gpu_count());
    options.on_stuck = leave_at_once;
  }
  return options;
}

void run_tensor_parallel(const ParsedArguments& parsed, const std::function<void(const Mesh&)>& body) {
  const Launch launch = read_launch(process_environment);
  const int64_t asked = parsed.args.tensor_model_parallel_size;
  if (parsed.sources.contains("tensor_model_parallel_size") && asked != launch.size) {
    throw config_error(
        {.what = fmt::format("tensor_model_parallel_size = {}, but the job has {} ranks", asked, launch.size),
         .where = "--tensor-model-parallel-size",
         .fix = fmt::format("Start {} with `teratron launch --nproc-per-node {} -- ...`",
                            asked == 1 ? "one rank" : "as many ranks", asked)});
  }
  run_world(launch, world_options(parsed.args, launch),
            [&](World& world) { body(Mesh({.tp = launch.size, .dp = 1}, world)); });
}

}  // namespace teratron
