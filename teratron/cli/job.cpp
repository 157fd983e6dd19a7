#include "teratron/cli/job.h"

#include <unistd.h>

#include "teratron/base/log.h"
#include "teratron/train/device.h"
#include "teratron/train/model_setup.h"

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

}  // namespace teratron
