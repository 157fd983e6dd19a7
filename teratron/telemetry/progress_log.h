// progress.txt in the save directory (--log-progress): one line per start of a job and per checkpoint, in
// Megatron-LM's form, for people and for scripts that watch a training over many jobs.
//
//   2026-01-31 12:00:00 <tab> Job ID: 17 <tab> # GPUs: 8 <tab> Saved checkpoint <tab> Iteration: 100 <tab> ...
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace teratron {

class ProgressLog {
 public:
  struct Start {
    int64_t world_size = 1;
    double flops = 0.0;      // floating-point operations that former jobs did
    double wall_time = 0.0;  // seconds since 1970
  };
  /// Reads what former jobs wrote and adds "Starting job". UserError(config) where the file cannot be written.
  ProgressLog(const std::filesystem::path& directory, const Start& start);

  struct Saved {
    int64_t iteration = 0;
    double flops = 0.0;  // floating-point operations so far, those of former jobs included
    int64_t tokens = 0;  // so far
    double wall_time = 0.0;
  };
  /// The job's throughput is since its start; the cumulative one since the first of the consecutive jobs with as many
  /// ranks.
  void saved(const Saved& saved);

 private:
  void add(const std::string& text, double wall_time);
  std::filesystem::path path_;
  Start start_;
  double first_time_;   // of the consecutive jobs of this size
  double first_flops_;  // and what had been done before them
};

}  // namespace teratron
