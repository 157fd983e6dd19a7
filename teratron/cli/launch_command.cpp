#include "teratron/base/background_log.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/published/published_program.h"
#include "teratron/cli/resume_advice.h"
#include "teratron/launch/launch_job.h"

namespace teratron {

namespace {

// Wrong settings, data or checkpoints stay wrong when the command is started again.
bool is_interruption(int code) {
  return code > static_cast<int>(ExitCode::checkpoint);
}

}  // namespace

int launch_command(std::span<const std::string> args) {
  const std::optional<LaunchOptions> options = read_launch_options(args, command_of_program);
  if (!options) return 0;
  log_in_background(fmt::format("The ranks' logs in {} have them", options->log_directory));
  SignalQueue signals;
  for (int64_t attempt = 0;; ++attempt) {
    const LaunchJob::Result result = LaunchJob(*options, attempt).run(signals);
    if (result.failure.empty()) {
      if (result.code == static_cast<int>(ExitCode::stopped)) print_resume_advice(options->save);
      return result.code;
    }
    const bool restart = result.code == static_cast<int>(ExitCode::retryable) && !result.interrupted;
    if (!restart || attempt == options->max_restarts) {
      if (is_interruption(result.code)) print_resume_advice(options->save);
      throw Fault(result.failure, static_cast<ExitCode>(result.code));
    }
    warn("{}", result.failure);
    notice("restarting all ranks ({} of {}){}", attempt + 1, options->max_restarts,
           from_last_checkpoint(options->save));
  }
}

}  // namespace teratron
