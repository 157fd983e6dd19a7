#include "teratron/train/loop/stop_policy.h"

#include <algorithm>

#include "teratron/base/log.h"
#include "teratron/telemetry/metrics_logger.h"

namespace teratron {

std::filesystem::path StopPolicy::autoresume_file() const {
  const Arguments& args = trainer_.args();
  return args.autoresume_file.value_or((std::filesystem::path(args.save.value()) / "autoresume").string());
}

int64_t StopPolicy::request() const {
  const int signal = signals_.received();
  return static_cast<int64_t>(signal != 0 ? Reason::signal : planned()) + signal;
}

StopPolicy::Reason StopPolicy::planned() const {
  const Arguments& args = trainer_.args();
  const bool looks_for_file = args.adlr_autoresume && trainer_.is_first_rank() &&
                              (trainer_.state().iteration + 1) % args.adlr_autoresume_interval == 0;
  std::error_code ignored;
  if (looks_for_file && std::filesystem::exists(autoresume_file(), ignored)) return Reason::autoresume;
  const bool late = args.exit_duration_in_mins &&
                    wall_clock() - start_time_ > 60.0 * static_cast<double>(*args.exit_duration_in_mins);
  return late || observer_stopped_ ? Reason::duration : Reason::none;
}

void StopPolicy::agree(int64_t request) {
  const auto by_signal = static_cast<int64_t>(Reason::signal);
  stop(static_cast<Reason>(std::min(request, by_signal)));
  signal_ = std::max(signal_, request - by_signal);
  if (reason_ == Reason::signal) signals_.answered();
}

void StopPolicy::stop_by_signal(int64_t signal) {
  reason_ = Reason::signal;
  signal_ = signal;
  signals_.answered();
}

const char* StopPolicy::name() const {
  static constexpr const char* names[] = {"finished", "exit-interval", "exit-duration", "autoresume",
                                          "signal"};
  return names[static_cast<size_t>(reason_)];
}

void StopPolicy::log_stop() const {
  const Arguments& args = trainer_.args();
  const int64_t iteration = trainer_.state().iteration;
  if (!args.save && !args.skip_train) {
    warn("stopped by a signal, and {}: there is no --save",
         args.hf_out ? "only the weights were kept, in --hf-out" : "nothing was saved");
  } else if (signal_ > 0 && (args.skip_train || iteration >= trainer_.train_iters())) {
    print("stopped by signal {} before the evaluation was complete", signal_);
  } else if (signal_ > 0) {
    print("stopped by signal {} after saving iteration {}; start again to go on", signal_, iteration);
  }
}

void StopPolicy::conclude() const {
  if (!is_to_be_restarted() || !trainer_.is_first_rank()) return;
  log_stop();
  if (reason_ != Reason::autoresume) return;
  notice("autoresume: {} requested the stop and is removed", autoresume_file().string());
  std::error_code error;
  std::filesystem::remove(autoresume_file(), error);
  if (error) warn("{} cannot be removed: {}", autoresume_file().string(), error.message());
}

}  // namespace teratron
