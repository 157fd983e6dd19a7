#include "teratron/launch/rank_output.h"

#include <charconv>

#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/telemetry/log_lines.h"
#include "teratron/telemetry/metrics_logger.h"
#include "teratron/telemetry/progress.h"

namespace teratron {
namespace {

constexpr size_t kLastLines = 12;

/// Parses Megatron-LM's "... iteration     12/   50 | ..." and the short "step 12/50 | ..."; 0 for any other
/// line.
int64_t parse_iteration(std::string_view line) {
  constexpr std::string_view keyword = " iteration ", short_keyword = "step ";
  const size_t at = line.find(keyword);
  size_t digits = at == line.npos ? at : line.find_first_not_of(' ', at + keyword.size());
  if (line.starts_with(short_keyword)) digits = short_keyword.size();
  int64_t number = 0;
  if (digits == line.npos) return 0;
  const auto [end, error] = std::from_chars(line.data() + digits, line.data() + line.size(), number);
  return error == std::errc() && end != line.data() + line.size() && *end == '/' ? number : 0;
}

}  // namespace

RankOutput::RankOutput(std::filesystem::path log, bool on_screen)
    : log_(std::move(log)), on_screen_(on_screen) {
  File::append(log_, ExitCode::config);  // with the mode of all files of a run
  file_.open(log_, std::ios::app);
  if (!file_) {
    throw config_error(
        {.what = "cannot be written", .where = log_.string(), .fix = "Choose another --log-dir"});
  }
  file_.seekp(0, std::ios::end);
  if (file_.tellp() == 0) return;
  file_ << fmt::format("---- {}, the job of launcher {} ----", timestamp(wall_clock()), getpid())
        << std::endl;
}

void RankOutput::add_line(std::string_view line) {
  if (line.starts_with(progress_mark)) {
    if (on_screen_) status_line(printable(line.substr(1), 400));
    return;
  }
  if (file_ && !(file_ << line << '\n' << std::flush)) {
    warn("{} cannot be written any more: no space left, or its folder was removed", log_.string());
  }
  if (line.starts_with("error: ")) {
    has_error_ = true;
    has_own_error_ = has_own_error_ || !line.starts_with("error: rank ");
  }
  if (const int64_t iteration = parse_iteration(line); iteration > 0) iteration_ = iteration;
  last_.emplace_back(line);
  // Keep a whole error message, up to a limit.
  if (last_.size() > kLastLines && !(last_.front().starts_with("error: ") && last_.size() < 4 * kLastLines)) {
    last_.pop_front();
  }
  // The launcher reports errors at the end, starting from their cause.
  if (!on_screen_ || has_error_) return;
  constexpr std::string_view notice = "notice: ", warning = "warning: ";
  if (line.starts_with(notice)) return notice_line(line.substr(notice.size()));
  if (line.starts_with(warning)) return warning_line(line.substr(warning.size()));
  print_line(line);
}

std::string RankOutput::last_lines() const {
  auto first = last_.begin();
  while (has_error_ && first != last_.end() && !first->starts_with("error: ")) ++first;
  std::string text;
  for (; first != last_.end(); ++first) text += "\n  | " + *first;
  return text;
}

}  // namespace teratron
