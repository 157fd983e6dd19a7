// A rank's output: all of it goes to its log file, selected lines to the screen.
#pragma once

#include <deque>
#include <filesystem>
#include <string>
#include <string_view>

#include "teratron/comm/transport/socket.h"

namespace teratron {

class RankOutput {
 public:
  /// Appends to the log of an earlier job. While another launcher writes to `log`, the log of this one has
  /// its process id in the name. Throws UserError(config) if it cannot be written.
  RankOutput(const std::filesystem::path& log, bool on_screen);

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
  void write(std::string_view text);

  std::filesystem::path log_;
  FileDescriptor file_;  // locked, unless the file system has no locks
  bool failed_ = false;  // to write
  const bool on_screen_;
  bool has_error_ = false;
  bool has_own_error_ = false;
  int64_t iteration_ = 0;
  std::deque<std::string> last_;
};

}  // namespace teratron
