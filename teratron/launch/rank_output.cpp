#include "teratron/launch/rank_output.h"

#include <charconv>
#include <cstdio>

#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/telemetry/log_lines.h"
#include "teratron/telemetry/sinks.h"

namespace teratron {
namespace {

constexpr size_t kLastLines = 12;

/// Of Megatron-LM's line "... iteration     12/   50 | ..." or of the short "step 12/50 | ..."; 0 if it is another.
int64_t iteration_of(std::string_view line) {
  constexpr std::string_view word = " iteration ", short_word = "step ";
  const size_t at = line.find(word);
  size_t digits = at == line.npos ? at : line.find_first_not_of(' ', at + word.size());
  if (line.starts_with(short_word)) digits = short_word.size();
  int64_t number = 0;
  if (digits == line.npos) return 0;
  const auto [end, error] = std::from_chars(line.data() + digits, line.data() + line.size(), number);
  return error == std::errc() && end != line.data() + line.size() && *end == '/' ? number : 0;
}

}  // namespace

RankOutput::RankOutput(std::filesystem::path log, bool on_screen)
    : log_(std::move(log)), file_(log_, std::ios::app), on_screen_(on_screen) {
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
  if (file_ && !(file_ << line << '\n' << std::flush)) {
    warn("{} is not written any more: no space, or its folder is gone", log_.string());
  }
  if (line.starts_with("error: ")) {
    has_failed_ = true;
    has_own_reason_ = has_own_reason_ || !line.starts_with("error: rank ");
  }
  if (const int64_t iteration = iteration_of(line); iteration > 0) iteration_ = iteration;
  last_.emplace_back(line);
  // An error is told whole, if it is not endless.
  if (last_.size() > kLastLines && !(last_.front().starts_with("error: ") && last_.size() < 4 * kLastLines)) {
    last_.pop_front();
  }
  // Errors are told at the end, in order of their causes.
  if (!on_screen_ || has_failed_) return;
  if (line.starts_with("notice: ") || line.starts_with("warning: ")) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  } else {
    print_line(line);
  }
}

std::string RankOutput::last_lines() const {
  auto first = last_.begin();
  while (has_failed_ && first != last_.end() && !first->starts_with("error: ")) ++first;
  std::string text;
  for (; first != last_.end(); ++first) text += "\n  | " + *first;
  return text;
}

}  // namespace teratron
