// What a rank prints: all of it goes to its log file, what a user wants to see to the screen.
#pragma once

#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace teratron {

class RankOutput {
 public:
  /// What an earlier job has left in the log stays. Throws UserError(config) if it cannot be written.
  RankOutput(std::filesystem::path log, bool on_screen);

  void add_line(std::string_view line);
  const std::filesystem::path& log() const { return log_; }
  /// It has printed an "error:".
  bool has_failed() const { return has_failed_; }
  /// And not what it has heard of another rank.
  bool has_own_reason() const { return has_own_reason_; }
  /// The iteration of the last loss line; 0 if there was none.
  int64_t iteration() const { return iteration_; }
  /// The last lines, from the first "error:" on if there is one.
  std::string last_lines() const;

 private:
  std::filesystem::path log_;
  std::ofstream file_;
  const bool on_screen_;
  bool has_failed_ = false;
  bool has_own_reason_ = false;
  int64_t iteration_ = 0;
  std::deque<std::string> last_;
};

}  // namespace teratron
