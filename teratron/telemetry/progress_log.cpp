#include "teratron/telemetry/progress_log.h"

#include <cstdlib>
#include <ctime>
#include <optional>
#include <vector>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/telemetry/log_lines.h"

namespace teratron {

namespace {

// The number after "name: ", if there is one.
std::optional<double> number_after(const std::string& field, const std::string& name) {
  if (!field.starts_with(name + ": ")) return std::nullopt;
  char* end = nullptr;
  const char* begin = field.c_str() + name.size() + 2;
  const double value = std::strtod(begin, &end);
  return end == begin ? std::nullopt : std::optional(value);
}

std::optional<double> parse_time(const std::string& text) {
  std::tm local{};
  if (strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &local) == nullptr) return std::nullopt;
  local.tm_isdst = -1;
  return static_cast<double>(std::mktime(&local));
}

double tflops_per_gpu(double flops, double seconds, int64_t world_size) {
  return seconds > 0.0 ? flops / (seconds * 1e12 * static_cast<double>(world_size)) : 0.0;
}

}  // namespace

ProgressLog::ProgressLog(const std::filesystem::path& directory, const Start& start)
    : path_(directory / "progress.txt"),
      start_(start),
      first_time_(start.wall_time),
      first_flops_(start.flops) {
  std::error_code ignored;
  const bool is_new = !std::filesystem::exists(path_, ignored);
  double latest_flops = 0.0;
  bool searching = true;
  for (const std::string& line : split(is_new ? "" : read_text(path_, {.kind = ExitCode::config}), '\n')) {
    const std::vector<std::string> fields = split(line, '\t');
    if (fields.size() < 4) continue;
    if (fields[3] == "Saved checkpoint" && fields.size() > 7) {
      latest_flops = number_after(fields[7], "Floating-point operations").value_or(latest_flops);
    }
    if (number_after(fields[2], "# GPUs") != static_cast<double>(start.world_size)) {
      searching = true;  // a job of another world size ran in between
      first_time_ = start.wall_time;
      first_flops_ = start.flops;
    } else if (fields[3] == "Starting job" && searching) {
      const std::optional<double> time = parse_time(fields[0]);
      if (!time) continue;
      searching = false;
      first_time_ = *time;
      first_flops_ = latest_flops;
    }
  }
  add("Starting job", start.wall_time);
}

void ProgressLog::saved(const Saved& saved) {
  const double job =
      tflops_per_gpu(saved.flops - start_.flops, saved.wall_time - start_.wall_time, start_.world_size);
  const double cumulative =
      tflops_per_gpu(saved.flops - first_flops_, saved.wall_time - first_time_, start_.world_size);
  if (failed_) return;
  try {
    add(fmt::format("Saved checkpoint\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\t"
                    "Cumulative throughput: {:.1f} TFLOP/s/GPU\tFloating-point operations: {:.2e}\t"
                    "Tokens (in billions): {:.2f}",
                    saved.iteration, job, cumulative, saved.flops, static_cast<double>(saved.tokens) / 1e9),
        saved.wall_time);
  } catch (const std::exception& error) {
    failed_ = true;
    warn("--log-progress: {} Nothing more is written to it", error.what());
  }
}

void ProgressLog::add(const std::string& text, double wall_time) {
  const char* job = std::getenv("SLURM_JOB_ID");
  File::append(path_, ExitCode::config)
      .write(fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", timestamp(wall_time, false), job ? job : "",
                         start_.world_size, text));
}

}  // namespace teratron
