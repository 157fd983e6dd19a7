// Log lines as pure functions: Megatron-LM's format, which log parsers rely on, and a short one.
#pragma once

#include <string>
#include <vector>

#include "teratron/telemetry/metrics.h"

namespace teratron {

/// "2026-01-31 12:00:00.123456" in local time; `microseconds` false: to seconds.
std::string timestamp(double wall_time, bool microseconds = true);

struct StepLineOptions {
  int64_t train_iters = 0;
  double wall_time = 0.0;       // seconds since 1970
  bool log_throughput = false;  // --log-throughput
};

/// ` [2026-01-31 12:00:00.123456] iteration      100/    1000 | consumed samples: ... | number of nan
/// iterations:   0 |`
std::string megatron_step_line(const IntervalMetrics& interval, const StepLineOptions& options);

/// --log-format short, at most 120 columns:
/// `step 1200/50000 | loss 2.4137 | gnorm 0.83 | lr 3.00e-4 | 412 ms | 1.27M tok/s | 51.3% MFU | 61.2 GiB |
/// eta 5h32m`, then ` | skipped 2 | nan 1` if not 0. Unknown MFU and memory are left out.
std::string short_step_line(const IntervalMetrics& interval, const StepLineOptions& options);

/// Three lines: the line below between two lines of dashes; and one that says if it is a repetition.
/// ` validation loss at iteration 100 | lm loss value: 2.413700E+00 | lm loss PPL: 1.117520E+01 | `
std::vector<std::string> evaluation_lines(const EvalMetrics& evaluation);

/// --log-format short.
std::string short_evaluation_line(const EvalMetrics& evaluation);

/// A rank's position in the model-parallel grid, from 0; save_line prints it from 1.
struct GridPosition {
  int64_t tp_rank = 0;
  int64_t tp_size = 1;
  int64_t pp_rank = 0;
  int64_t pp_size = 1;
};

/// `  successfully saved checkpoint from iteration     100 to DIR [ t 1/2, p 1/1 ]`
std::string save_line(int64_t iteration, const std::string& directory, const GridPosition& position);

/// `[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.00 | max allocated: ... | reserved: ... | max
/// reserved: ...`
std::string memory_line(int64_t rank, int64_t iterations, const MemoryUse& memory);

enum class TimingOption : uint8_t { max, minmax, all };  // --timing-log-option

/// `(min, max) time across ranks (ms):`, then one line per timer, its name padded with dots to 48 columns;
/// `all` has a line per timer and rank. Empty if there are no timers.
std::vector<std::string> timer_lines(const TimerMetrics& timers, TimingOption option);

/// `[after training is done] datetime: 2026-01-31 12:00:00 `
std::string datetime_line(const std::string& what, double wall_time);

/// "5h32m", "41s", "3d04h"; "?" for a negative or infinite duration.
std::string short_duration(double seconds);
/// Three significant digits: "1.27M", "412", "12.3k".
std::string short_count(double value);

}  // namespace teratron
