#include "teratron/optim/batch_schedule.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {
namespace {

constexpr const char* step_flag = "--step-batch-size-schedule";
constexpr const char* ramp_flag = "--rampup-batch-size";

UserError step_error(std::string what, std::string fix) {
  return config_error({.what = std::move(what), .where = step_flag, .fix = std::move(fix)});
}

int64_t checked_divisor(const BatchSplit& split) {
  int64_t divisor = 0;
  const bool overflow = __builtin_mul_overflow(split.micro_batch_size, split.data_parallel_size, &divisor);
  if (split.micro_batch_size <= 0 || split.data_parallel_size <= 0 || overflow) {
    throw config_error(
        {.what = fmt::format("micro-batch-size = {} times data-parallel size = {} is not a batch",
                             split.micro_batch_size, split.data_parallel_size),
         .where = "--micro-batch-size",
         .fix = "both must be positive"});
  }
  return divisor;
}

/// "250B", "1.5k", "768": decimal number with an optional suffix, truncated to an integer.
int64_t parse_amount(std::string_view text, std::string_view entry) {
  static constexpr std::string_view suffixes = "KMBT";
  static constexpr std::array<double, 4> multipliers = {1e3, 1e6, 1e9, 1e12};
  const size_t suffix =
      text.empty() ? suffixes.npos
                   : suffixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
  const std::string_view digits = text.substr(0, text.size() - (suffix < suffixes.size() ? 1 : 0));
  double value = 0.0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = status == std::errc() && end == digits.data() + digits.size();
  if (suffix < suffixes.size()) value *= multipliers[suffix];
  if (!whole || !(value >= 0.0 && value < 9.0e18)) {
    throw step_error(
        fmt::format("\"{}\" of the entry \"{}\" is not a number", printable(text), printable(entry)),
        "write THRESHOLD:SIZE, such as 0:768 250B:1536");
  }
  return static_cast<int64_t>(value);
}

std::vector<std::string_view> split_entries(std::string_view text) {
  constexpr std::string_view separators = ", \t\r\n";
  std::vector<std::string_view> entries;
  for (size_t start = text.find_first_not_of(separators); start != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(separators, start), text.size());
    entries.push_back(text.substr(start, end - start));
    start = text.find_first_not_of(separators, end);
  }
  return entries;
}

void require_increasing(const std::vector<BatchStep>& steps) {
  if (steps.empty())
    throw step_error("the schedule is empty", "write THRESHOLD:SIZE, such as 0:768 250B:1536");
  if (steps.front().samples != 0) {
    throw step_error(fmt::format("the first threshold is {}", steps.front().samples),
                     "start the schedule at 0");
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].global_batch_size <= 0) {
      throw step_error(fmt::format("batch size {} is not positive", steps[i].global_batch_size),
                       "use 1 or more");
    }
    if (i > 0 && steps[i].samples == steps[i - 1].samples) {
      throw step_error(fmt::format("the threshold {} (in samples) occurs twice", steps[i].samples),
                       "use each threshold once");
    }
  }
}

}  // namespace

std::vector<BatchStep> parse_step_batch_size_schedule(std::string_view text,
                                                      std::optional<int64_t> seq_length) {
  std::vector<BatchStep> steps;
  for (const std::string_view entry : split_entries(text)) {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      throw step_error(fmt::format("the entry \"{}\" has no colon", printable(entry)),
                       "write THRESHOLD:SIZE, such as 0:768 250B:1536");
    }
    int64_t threshold = parse_amount(entry.substr(0, colon), entry);
    if (seq_length) threshold /= std::max<int64_t>(*seq_length, 1);
    steps.push_back({threshold, parse_amount(entry.substr(colon + 1), entry)});
  }
  std::stable_sort(steps.begin(), steps.end(), [](auto& a, auto& b) { return a.samples < b.samples; });
  require_increasing(steps);
  return steps;
}

BatchSchedule::BatchSchedule(const BatchSplit& split, std::vector<BatchStep> steps)
    : split_(split), divisor_(checked_divisor(split)), steps_(std::move(steps)) {}

BatchSchedule BatchSchedule::constant(int64_t global_batch_size, const BatchSplit& split) {
  BatchSchedule schedule(split, {{0, global_batch_size}});
  if (global_batch_size <= 0) {
    throw config_error({.what = fmt::format("global-batch-size = {} is not positive", global_batch_size),
                        .where = "--global-batch-size",
                        .fix = fmt::format("use a multiple of {}", schedule.divisor_)});
  }
  schedule.require_divisible();
  return schedule;
}

BatchSchedule BatchSchedule::ramp(const BatchRamp& ramp, int64_t global_batch_size, const BatchSplit& split) {
  const auto reject = [](std::string what, std::string fix) {
    return config_error({.what = std::move(what), .where = ramp_flag, .fix = std::move(fix)});
  };
  if (ramp.start <= 0 || ramp.increment <= 0 || ramp.samples <= 0) {
    throw reject(fmt::format("a ramp of start {}, increment {} over {} samples", ramp.start, ramp.increment,
                             ramp.samples),
                 "all three numbers must be positive");
  }
  const int64_t difference = global_batch_size - ramp.start;
  if (difference <= 0) {
    throw reject(
        fmt::format("the ramp starts at {}, but the global batch size is {}", ramp.start, global_batch_size),
        "start below --global-batch-size, or omit the ramp");
  }
  if (difference % ramp.increment != 0) {
    throw reject(fmt::format("{} - {} = {} is not a multiple of the increment {}", global_batch_size,
                             ramp.start, difference, ramp.increment),
                 "choose an increment that divides it");
  }
  BatchSchedule schedule(split, {{0, global_batch_size}});
  schedule.ramp_ = ramp;
  schedule.samples_per_increment_ = double(ramp.samples) / double(difference / ramp.increment);
  return schedule;
}

BatchSchedule BatchSchedule::steps(std::vector<BatchStep> steps, const BatchSplit& split) {
  if (split.decrease_if_needed) {
    throw step_error("a step schedule cannot be combined with --decrease-batch-size-if-needed",
                     "omit one of the two");
  }
  require_increasing(steps);
  return BatchSchedule(split, std::move(steps));
}

int64_t BatchSchedule::scheduled(int64_t consumed) const {
  if (ramp_ && consumed <= ramp_->samples) {
    const auto increments = static_cast<int64_t>(double(consumed) / samples_per_increment_);
    return ramp_->start + increments * ramp_->increment;
  }
  const auto after = std::upper_bound(steps_.begin(), steps_.end(), consumed,
                                      [](int64_t n, auto& step) { return n < step.samples; });
  return after == steps_.begin() ? steps_.front().global_batch_size : std::prev(after)->global_batch_size;
}

BatchSize BatchSchedule::at(int64_t consumed) const {
  return divided(scheduled(consumed));
}

BatchSize BatchSchedule::divided(int64_t global) const {
  BatchSize size{.global = global};
  size.running = split_.decrease_if_needed ? size.global / divisor_ * divisor_ : size.global;
  size.microbatches = size.running / divisor_;
  return size;
}

bool BatchSchedule::runs_at(int64_t consumed) const {
  const BatchSize size = at(consumed);
  return size.running % divisor_ == 0 && size.microbatches > 0;
}

std::optional<int64_t> BatchSchedule::next_change(int64_t consumed) const {
  if (ramp_) {
    if (consumed > ramp_->samples) return std::nullopt;
    // Sizes never fall. The border follows from a division in floating point, so it is searched for.
    int64_t low = consumed + 1, high = ramp_->samples + 1;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (scheduled(middle) == scheduled(consumed)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  for (const BatchStep& step : steps_) {
    if (step.samples > consumed) return step.samples;
  }
  return std::nullopt;
}

void BatchSchedule::require_divisible(int64_t consumed) const {
  std::set<int64_t> bad;
  for (std::optional<int64_t> change = consumed; change;) {
    if (!runs_at(consumed)) bad.insert(at(consumed).global);
    change = next_change(consumed);
    const int64_t batch = std::max<int64_t>(at(consumed).running, 1);
    if (change) consumed += ((*change - consumed - 1) / batch + 1) * batch;
  }
  std::vector<Problem> problems;
  for (const int64_t global : bad) {
    const int64_t below = global / divisor_ * divisor_;
    problems.push_back(
        {.what = fmt::format(
             "global batch size {} is not divisible by micro-batch-size {} x data-parallel size {} = {}",
             global, split_.micro_batch_size, split_.data_parallel_size, divisor_),
         .where = ramp_ ? ramp_flag : (steps_.size() > 1 ? step_flag : "--global-batch-size"),
         .fix = below > 0 ? fmt::format("use {} or {}", below, below + divisor_)
                          : fmt::format("use {}", divisor_)});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

int64_t BatchSchedule::iterations_for(int64_t samples, int64_t consumed) const {
  int64_t iterations = 0;
  while (true) {
    const int64_t batch = at(consumed).running;
    const int64_t limit = std::min(next_change(consumed).value_or(samples), samples);
    if (batch <= 0 || batch > samples - consumed) return iterations;
    // Steps that start before the next change have this size; the last may extend beyond it.
    const int64_t fitting = (samples - consumed) / batch;
    const int64_t before_change = (limit - consumed - 1) / batch + 1;
    const int64_t now = std::min(fitting, before_change);
    consumed += now * batch;
    iterations += now;
  }
}

int64_t BatchSchedule::consumed_after(int64_t iterations, int64_t consumed) const {
  while (iterations > 0) {
    const int64_t batch = at(consumed).running;
    if (batch <= 0) return consumed;
    const std::optional<int64_t> change = next_change(consumed);
    const int64_t now = change ? std::min(iterations, (*change - consumed - 1) / batch + 1) : iterations;
    int64_t samples = 0;
    if (__builtin_mul_overflow(now, batch, &samples) || __builtin_add_overflow(consumed, samples, &consumed))
      return std::numeric_limits<int64_t>::max();
    iterations -= now;
  }
  return consumed;
}

}  // namespace teratron
