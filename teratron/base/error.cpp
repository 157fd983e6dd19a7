#include "teratron/base/error.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>

#include <poll.h>
#include <unistd.h>

#include "teratron/base/background_log.h"

namespace teratron {

namespace {

std::string join_problems(const std::vector<Problem>& problems) {
  constexpr size_t most_shown = 30;
  std::string text;
  for (size_t i = 0; i < problems.size(); ++i) {
    const bool last = i + 1 == problems.size();
    if (i >= most_shown && !last) continue;
    if (i > most_shown) text += fmt::format("\n... {} more ...", i - most_shown);  // the last one has the fix
    if (i > 0) text += '\n';
    text += to_string(problems[i]);
  }
  return text;
}

// Default fix for a file.
const char* default_fix(ExitCode kind) {
  if (kind == ExitCode::data) return "Use another file, or recreate or download this one";
  if (kind == ExitCode::checkpoint) return "Load another checkpoint, or recreate or download this one";
  return "";
}

// The default fix of the last problem covers all.
std::vector<Problem> with_default_fix(ExitCode kind, std::vector<Problem> problems) {
  if (!problems.empty() && problems.back().fix.empty()) problems.back().fix = default_fix(kind);
  return problems;
}

}  // namespace

std::string to_string(const Problem& problem) {
  std::string text;
  if (!problem.where.empty()) text += problem.where + ": ";
  text += problem.what;
  if (!problem.fix.empty()) {
    text += ". ";
    text += static_cast<char>(std::toupper(static_cast<unsigned char>(problem.fix.front())));
    text += problem.fix.substr(1);
  }
  if (text.back() != '.' && text.back() != '?') text += '.';
  return text;
}

UserError::UserError(ExitCode kind, std::vector<Problem> problems)
    : std::runtime_error(join_problems(problems = with_default_fix(kind, std::move(problems)))),
      kind_(kind),
      problems_(std::move(problems)) {}

UserError config_error(Problem problem) {
  return {ExitCode::config, {std::move(problem)}};
}

UserError data_error(Problem problem) {
  return {ExitCode::data, {std::move(problem)}};
}

UserError checkpoint_error(Problem problem) {
  return {ExitCode::checkpoint, {std::move(problem)}};
}

void assertion_failed(const char* condition, const char* file, int line, const std::string& detail) {
  flush_log();
  pollfd messages{STDERR_FILENO, POLLOUT, 0};
  constexpr int kPatienceMs = 2000;
  if (poll(&messages, 1, kPatienceMs) == 0) std::abort();  // nothing reads them
  std::fprintf(stderr, "teratron: internal error: %s:%d: %s %s\nPlease report this as a bug.\n", file, line,
               condition, detail.c_str());
  std::abort();
}

std::string printable(std::string_view text, size_t max_length) {
  std::string out;
  const std::string_view shown = text.substr(0, max_length);
  for (size_t i = 0; i < shown.size(); ++i) {
    const auto byte = static_cast<unsigned char>(shown[i]);
    const auto next = static_cast<unsigned char>(i + 1 < shown.size() ? shown[i + 1] : 0);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F in UTF-8
      out += fmt::format("\\x{:02x}\\x{:02x}", byte, next);
      ++i;
    } else {
      out += shown[i];
    }
  }
  if (text.size() > max_length) out += "...";
  return out;
}

}  // namespace teratron
