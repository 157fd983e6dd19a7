// A rank's output: all of it goes to its log file, selected lines to the screen.
#pragma once

#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace teratron {

class RankOutput {
 public:
  /// Appends to the log of an earlier job. Throws UserError(config) if it cannot be written.
  RankOutput(std::filesystem::path log, bool on_screen);

  /// A line that starts with progress_mark (progress.h) replaces the screen's status line and is not logged.
  void add_line(std::string_view line);
  const std::filesystem::path& log() const { return log_; }
  /// The rank has printed an "error:" line.
  bool has_error() const { return has_error_; }
  /// One that does not report another rank's failure.
  bool has_own_error() const { return has_own_error_; }
  /// The last logged iteration; 0 if none.
  int64_t iteration() const { return iteration_; }
  /// The last lines, starting at the first "error:" if there is one.
  std::string last_lines() const;

 private:
  std::filesystem::path log_;
  std::ofstream file_;
  const bool on_screen_;
  bool has_error_ = false;
  bool has_own_error_ = false;
  int64_t iteration_ = 0;
  std::deque<std::string> last_;
};

}  // namespace teratron
