#include "teratron/telemetry/log_lines.h"

#include <cmath>
#include <ctime>

#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

/// 3.00e-4: no padding of the exponent.
std::string short_exponent(double value) {
  std::string text = fmt::format("{:.2e}", value);
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;
  const std::string digits = text.substr(e + 2);
  const size_t nonzero = digits.find_first_not_of('0');
  const std::string exponent = nonzero == std::string::npos ? "0" : digits.substr(nonzero);
  return text.substr(0, e + 1) + (text[e + 1] == '-' ? "-" : "") + exponent;
}

double in_gib(int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(1U << 30U);
}

std::string pad_with_dots(const std::string& name) {
  return fmt::format("{:.<48}", name + ' ');
}

std::vector<std::string> lines_per_rank(const TimerMetrics& timers) {
  std::vector<std::string> lines = {"times across ranks (ms):"};
  for (const TimerMetrics::Row& row : timers.rows) {
    lines.push_back(fmt::format("  {}:", row.name));
    for (size_t rank = 0; rank < row.per_rank_ms.size(); ++rank) {
      lines.push_back(fmt::format("     rank {:2d}: {:.2f}", rank, row.per_rank_ms[rank]));
    }
  }
  return lines;
}

}  // namespace

std::string timestamp(double wall_time, bool microseconds) {
  const double whole = std::floor(wall_time);
  auto micros = static_cast<int64_t>(std::llround((wall_time - whole) * 1e6));
  auto seconds = static_cast<std::time_t>(whole);
  if (micros >= 1'000'000) {
    micros -= 1'000'000;
    ++seconds;
  }
  std::tm local{};
  localtime_r(&seconds, &local);
  std::string text = fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", local.tm_year + 1900,
                                 local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec);
  if (microseconds) text += fmt::format(".{:06}", micros);
  return text;
}

std::string megatron_step_line(const IntervalMetrics& interval, const StepLineOptions& options) {
  const StepMetrics& last = interval.last;
  std::string line =
      fmt::format(" [{}] iteration {:8d}/{:8d} | consumed samples: {:12d} |", timestamp(options.wall_time),
                  last.iteration, options.train_iters, last.consumed_samples);
  if (last.skipped_samples > 0) line += fmt::format(" skipped samples: {:12d} |", last.skipped_samples);
  line += fmt::format(" elapsed time per iteration (ms): {:.1f} |", interval.seconds_per_iteration * 1000.0);
  if (options.log_throughput) {
    line += fmt::format(" throughput per GPU (TFLOP/s/GPU): {:.1f} |", interval.tflops_per_gpu);
  }
  line += fmt::format(" learning rate: {:.6E} |", last.learning_rate);
  if (last.decoupled_learning_rate) {
    line += fmt::format(" decoupled learning rate: {:.6E} |", *last.decoupled_learning_rate);
  }
  line += fmt::format(" global batch size: {:5d} |", last.global_batch_size);
  for (const auto& [name, mean] : last.losses) {
    if (mean >= 0.0) line += fmt::format(" {}: {:.6E} |", name, mean);
  }
  line += fmt::format(" loss scale: {:.1f} |", last.loss_scale);
  if (last.grad_norm) line += fmt::format(" grad norm: {:.3f} |", *last.grad_norm);
  if (last.num_zeros) line += fmt::format(" num zeros: {} |", *last.num_zeros);
  if (last.params_norm) line += fmt::format(" params norm: {:.3f} |", *last.params_norm);
  line += fmt::format(" number of skipped iterations: {:3d} | number of nan iterations: {:3d} |",
                      interval.skipped, interval.nan);
  if (last.memory) line += fmt::format(" max allocated (GiB): {:.2f} |", in_gib(last.memory->max_allocated));
  return line;
}

std::string short_step_line(const IntervalMetrics& interval, const StepLineOptions& options) {
  const StepMetrics& last = interval.last;
  std::string line = fmt::format("step {}/{}", last.iteration, options.train_iters);
  for (const auto& [name, mean] : last.losses) {
    line += fmt::format(" | {} {:.4f}", name == "lm loss" ? "loss" : name, mean);
  }
  if (last.grad_norm) line += fmt::format(" | gnorm {:.2f}", *last.grad_norm);
  line += fmt::format(" | lr {}", short_exponent(last.learning_rate));
  const double ms = interval.seconds_per_iteration * 1000.0;
  line += ms < 10.0 ? fmt::format(" | {:.1f} ms", ms) : fmt::format(" | {:.0f} ms", ms);
  line += fmt::format(" | {} tok/s", short_count(interval.tokens_per_second));
  if (interval.mfu > 0.0) line += fmt::format(" | {:.1f}% MFU", interval.mfu * 100.0);
  if (last.memory) {
    line += fmt::format(" | {:.1f} GiB", in_gib(last.memory->max_allocated));
  }
  const double left = static_cast<double>(options.train_iters - last.iteration);
  line += fmt::format(" | eta {}", short_duration(left * interval.seconds_per_iteration));
  if (interval.skipped > 0) line += fmt::format(" | skipped {}", interval.skipped);
  if (interval.nan > 0) line += fmt::format(" | nan {}", interval.nan);
  return line;
}

std::vector<std::string> evaluation_lines(const EvalMetrics& evaluation) {
  std::string line = fmt::format(" validation loss at {} | ", evaluation.prefix);
  for (const auto& [name, loss] : evaluation.losses) {
    line += fmt::format("{} value: {:.6E} | ", name, loss);
    if (evaluation.has_perplexity) line += fmt::format("{} PPL: {:.6E} | ", name, perplexity(loss));
  }
  for (const auto& [name, mean] : evaluation.metrics) line += fmt::format("{} value: {:.6E} | ", name, mean);
  const std::string rule(line.size() + 1, '-');
  std::vector<std::string> lines = {rule, line, rule};
  if (evaluation.repeated) {
    lines.push_back(
        fmt::format(" (the second evaluation of iteration {}, on the samples that follow those of the first)",
                    evaluation.iteration));
  }
  return lines;
}

std::string short_evaluation_line(const EvalMetrics& evaluation) {
  std::string line = fmt::format("{} at step {}", evaluation.split, evaluation.iteration);
  for (const auto& [name, loss] : evaluation.losses) {
    line += fmt::format(" | {} {:.4f}", name == "lm loss" ? "loss" : name, loss);
    if (evaluation.has_perplexity) line += fmt::format(" | ppl {:.2f}", perplexity(loss));
  }
  for (const auto& [name, mean] : evaluation.metrics) line += fmt::format(" | {} {:.4f}", name, mean);
  if (evaluation.repeated) line += " | second evaluation, on the next samples";
  return line + fmt::format(" | {:.1f} s", evaluation.seconds);
}

std::string save_line(int64_t iteration, const std::string& directory, const GridPosition& position) {
  return fmt::format("  successfully saved checkpoint from iteration {:7d} to {} [ t {}/{}, p {}/{} ]",
                     iteration, printable(directory, 4096), position.tp_rank + 1, position.tp_size,
                     position.pp_rank + 1, position.pp_size);
}

std::string memory_line(int64_t rank, int64_t iterations, const MemoryUse& memory) {
  const auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); };
  return fmt::format(
      "[Rank {}] (after {} iterations) memory (MB) | allocated: {:.2f} | max allocated: {:.2f} | "
      "reserved: {:.2f} | max reserved: {:.2f}",
      rank, iterations, megabytes(memory.allocated), megabytes(memory.max_allocated),
      megabytes(memory.reserved), megabytes(memory.max_reserved));
}

std::vector<std::string> timer_lines(const TimerMetrics& timers, TimingOption option) {
  if (timers.rows.empty()) return {};
  if (option == TimingOption::all) return lines_per_rank(timers);
  const bool both = option == TimingOption::minmax;
  std::vector<std::string> lines = {both ? "(min, max) time across ranks (ms):"
                                         : "max time across ranks (ms):"};
  for (const TimerMetrics::Row& row : timers.rows) {
    lines.push_back(
        both ? fmt::format("    {}: ({:.2f}, {:.2f})", pad_with_dots(row.name), row.min_ms, row.max_ms)
             : fmt::format("    {}: {:.2f}", pad_with_dots(row.name), row.max_ms));
  }
  return lines;
}

std::string datetime_line(const std::string& what, double wall_time) {
  return fmt::format("[{}] datetime: {} ", what, timestamp(wall_time, false));
}

std::string short_duration(double seconds) {
  if (!(seconds >= 0.0) || seconds > 1e10) return "?";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  const int64_t days = total / 86400;
  const int64_t hours = total / 3600 % 24;
  const int64_t minutes = total / 60 % 60;
  if (days > 0) return fmt::format("{}d{:02}h", days, hours);
  if (hours > 0) return fmt::format("{}h{:02}m", hours, minutes);
  if (minutes > 0) return fmt::format("{}m{:02}s", minutes, total % 60);
  return fmt::format("{}s", total);
}

std::string short_count(double value) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000.0;
    ++unit;
  }
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

}  // namespace teratron
