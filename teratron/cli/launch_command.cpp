#include "teratron/base/background_log.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/launch/launch_job.h"

namespace teratron {

int launch_command(std::span<const std::string> args) {
  const std::optional<LaunchOptions> options = read_launch_options(args);
  if (!options) return 0;
  log_in_background(fmt::format("The ranks' logs in {} have them", options->log_directory));
  const SignalQueue signals;
  for (int64_t attempt = 0;; ++attempt) {
    const LaunchJob::Result result = LaunchJob(*options, attempt).run(signals);
    if (result.failure.empty()) return result.code;
    const bool restart = result.code == static_cast<int>(ExitCode::retryable) && !result.interrupted;
    if (!restart || attempt == options->max_restarts) {
      throw Fault(result.failure, static_cast<ExitCode>(result.code));
    }
    warn("{}", result.failure);
    notice("restarting all ranks ({} of {})", attempt + 1, options->max_restarts);
  }
}

}  // namespace teratron
