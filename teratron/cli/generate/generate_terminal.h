// `teratron generate` without prompts in a terminal: each input is continued while one reads along.
//
// Under `teratron launch`, whose ranks have no standard input, rank 0 takes the job's terminal.
#pragma once

#include <memory>

#include "teratron/cli/generate/generate_job.h"

namespace teratron {

/// The terminal of this process, made its own for its lifetime.
class JobTerminal {
 public:
  /// Standard input and output, or the terminal of the launcher; null if there is none.
  static std::unique_ptr<JobTerminal> open(int64_t ranks);
  ~JobTerminal();
  JobTerminal(const JobTerminal&) = delete;
  JobTerminal& operator=(const JobTerminal&) = delete;
  int in() const { return in_; }
  int out() const { return out_; }

 private:
  JobTerminal(int in, int out) : in_(in), out_(out) {}
  int in_, out_;
  bool taken_ = false;  // from the launcher
};

/// Collective; `terminal` is null on other ranks than 0.
void generate_in_terminal(const GenerateJob& job, const JobTerminal* terminal);

}  // namespace teratron
