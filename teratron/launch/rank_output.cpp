#include "teratron/launch/rank_output.h"

#include <cerrno>
#include <charconv>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "teratron/base/error.h"
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

/// Locked until it is closed; empty if another launcher has locked it.
FileDescriptor open_log(const std::filesystem::path& log) {
  FileDescriptor file(open(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    throw config_error(
        {.what = "cannot be written", .where = log.string(), .fix = "Choose another --log-dir"});
  }
  struct flock request{};
  request.l_type = F_WRLCK;
  request.l_whence = SEEK_SET;
  const bool held = fcntl(file.get(), F_OFD_SETLK, &request) != 0 && (errno == EAGAIN || errno == EACCES);
  return held ? FileDescriptor() : std::move(file);
}

/// logs/rank-0.log -> logs/rank-0.launcher-4711.log
std::filesystem::path own_name(std::filesystem::path log) {
  return log.replace_extension(fmt::format(".launcher-{}.log", getpid()));
}

}  // namespace

RankOutput::RankOutput(const std::filesystem::path& log, bool on_screen)
    : log_(log), file_(open_log(log)), on_screen_(on_screen) {
  if (file_.get() < 0) {
    log_ = own_name(log);
    file_ = open_log(log_);
  }
  struct stat status{};
  if (fstat(file_.get(), &status) == 0 && status.st_size == 0) return;
  write(fmt::format("---- {}, the job of launcher {} ----\n", timestamp(wall_clock()), getpid()));
}

void RankOutput::write(std::string_view text) {
  while (!failed_ && !text.empty()) {
    const ssize_t written = ::write(file_.get(), text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      failed_ = true;
      warn("{} cannot be written any more: {}", log_.string(), strerrordesc_np(errno));
    }
  }
}

void RankOutput::add_line(std::string_view line) {
  if (line.starts_with(progress_mark)) {
    if (on_screen_) status_line(printable(line.substr(1), 400));
    return;
  }
  write(fmt::format("{}\n", line));
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
