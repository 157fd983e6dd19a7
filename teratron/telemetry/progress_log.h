// progress.txt in the save directory (--log-progress): one line per job start and per checkpoint, in
// Megatron-LM's format, to follow a training over many jobs.
//
//   2026-01-31 12:00:00<tab>Job ID: 17<tab># GPUs: 8<tab>Saved checkpoint<tab>Iteration: 100<tab>...
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace teratron {

class ProgressLog {
 public:
  struct Start {
    int64_t world_size = 1;
    double flops = 0.0;      // floating-point operations of previous jobs
    double wall_time = 0.0;  // seconds since 1970
  };
  /// Reads the lines of previous jobs and appends "Starting job". UserError(config) if the file cannot be
  /// written.
  ProgressLog(const std::filesystem::path& directory, const Start& start);

  struct Saved {
    int64_t iteration = 0;
    double flops = 0.0;  // floating-point operations so far, including previous jobs
    int64_t tokens = 0;  // so far
    double wall_time = 0.0;
  };
  /// Job throughput counts from the start of this job; cumulative throughput from the first of the
  /// consecutive jobs with this world size. A failure is a warning, after which nothing more is written.
  void saved(const Saved& saved);

 private:
  void add(const std::string& text, double wall_time);
  std::filesystem::path path_;
  Start start_;
  double first_time_;   // of the consecutive jobs of this world size
  double first_flops_;  // operations before them
  bool failed_ = false;
};

}  // namespace teratron
