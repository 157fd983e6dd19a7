// Three kinds of failure, and the exit code of each.
//
//   UserError        what the user gave is wrong (configuration, data, checkpoint): what, where, how to fix.
//   Fault            the world failed (I/O, GPU, network, peer); `retryable` says whether a restart can help.
//   TERATRON_ASSERT  our own bug: prints the condition and aborts.
//
// Nothing outside main() calls exit(). Each UserError has a test that triggers it.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace teratron {

/// Process exit codes, documented to users.
enum class ExitCode : int {
  ok = 0,
  config = 2,         // wrong flag, value or combination
  data = 3,           // wrong or damaged data set, text or tokenizer
  checkpoint = 4,     // wrong or damaged checkpoint, or the final save failed
  retryable = 5,      // peer, network, GPU or file system failed: start the job again
  numerics = 6,       // NaN or Inf that must not be trained through
  out_of_memory = 7,  // device or host memory
  stopped = 75,       // stopped by a signal after saving
};

/// One thing that is wrong with what the user gave.
struct Problem {
  std::string what;   // what is wrong, with the numbers
  std::string where;  // file:line:col, flag, tensor name...; may be empty
  std::string fix;    // what to do; if empty, UserError advises by kind
};

/// "where: what. fix": one line per problem.
std::string to_string(const Problem& problem);

/// Wrong input. `kind` is config, data or checkpoint. Carries every problem found, not only the first; what() shows the
/// first 30 of a longer list, and the last.
class UserError : public std::runtime_error {
 public:
  UserError(ExitCode kind, std::vector<Problem> problems);
  ExitCode exit_code() const { return kind_; }
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  ExitCode kind_;
  std::vector<Problem> problems_;
};

[[nodiscard]] UserError config_error(Problem problem);
[[nodiscard]] UserError data_error(Problem problem);
[[nodiscard]] UserError checkpoint_error(Problem problem);

/// The world failed. exit_code() is retryable unless said otherwise.
class Fault : public std::runtime_error {
 public:
  explicit Fault(const std::string& message, ExitCode code = ExitCode::retryable)
      : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line,
                                   const std::string& detail);

/// Text from a file or a user, made safe to print: control characters are escaped, long texts are cut.
std::string printable(std::string_view text, size_t max_length = 200);

}  // namespace teratron

/// Our own invariant. Optional detail: TERATRON_ASSERT(a == b, "a = {}, b = {}", a, b).
#define TERATRON_ASSERT(condition, ...)                                                            \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::teratron::assertion_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
