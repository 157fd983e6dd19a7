// A run's JSONL read back: what reports, `teratron plan` and tests need of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "teratron/telemetry/metrics.h"

namespace teratron {

struct RunLog {
  struct Step {
    int64_t iteration = 0;
    double learning_rate = 0.0;
    double grad_norm = 0.0;  // NaN where it was not logged
    double seconds = 0.0;
    int64_t tokens = 0;
    bool skipped = false;
    Losses losses;  // NaN where JSON says null
  };
  struct Evaluation {
    int64_t iteration = 0;
    std::string split;
    Losses losses;
  };

  std::string run_id;
  std::vector<std::pair<std::string, std::string>> facts;
  int64_t train_iters = 0;
  int64_t restarts = 0;    // how often the run was resumed
  std::string first_time;  // ISO, of the first and the last event
  std::string last_time;
  std::vector<Step> steps;
  std::vector<Evaluation> evaluations;
  std::vector<SampleText> samples;
  std::vector<std::pair<int64_t, double>> mfu;  // iteration, share of the peak
  int64_t saves = 0;
  int64_t peak_memory = 0;  // bytes; 0: not logged
  std::string end_reason;   // empty: still running, or killed
  int64_t unreadable_lines = 0;
};

/// Reads the file. Steps that a restart did again are taken from the last run. Lines that do not parse (a job
/// may have died in the middle of one) are counted. UserError(data) where the file is missing or holds no
/// event at all.
RunLog read_run_log(const std::filesystem::path& jsonl);

}  // namespace teratron
