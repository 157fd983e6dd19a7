// Three kinds of failure and their exit codes.
//
//   UserError        invalid input (configuration, data, checkpoint): what, where, how to fix it.
//   Fault            failure of the environment (I/O, GPU, network, peer rank); usually a restart helps.
//   TERATRON_ASSERT  a bug in Teratron: prints the condition and aborts.
//
// Only main() calls exit(). Each UserError has a test that triggers it.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace teratron {

/// Process exit codes (user-visible).
enum class ExitCode : int {
  ok = 0,
  config = 2,         // invalid flag, value or combination
  data = 3,           // invalid or corrupt dataset, text or tokenizer
  checkpoint = 4,     // invalid or corrupt checkpoint, or the final save failed
  retryable = 5,      // peer, network, GPU or file system failed: restart the job
  numerics = 6,       // NaN or Inf in training
  out_of_memory = 7,  // device or host memory
  stopped = 75,       // stopped by a signal after saving
};

/// A single error in the user's input.
struct Problem {
  std::string what;   // what is wrong, with the values
  std::string where;  // file:line:col, flag, tensor name; may be empty
  std::string fix;    // what to do; if empty, UserError adds a default by kind
};

/// "where: what. fix"
std::string to_string(const Problem& problem);

/// Invalid input. `kind` is config, data or checkpoint. Carries all problems found; what() shows the first 30
/// and the last.
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

/// Failure of the environment; retryable by default.
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

/// Escapes control characters and truncates untrusted text for printing.
std::string printable(std::string_view text, size_t max_length = 200);

}  // namespace teratron

/// Internal invariant with optional detail: TERATRON_ASSERT(a == b, "a = {}, b = {}", a, b).
#define TERATRON_ASSERT(condition, ...)                                                            \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::teratron::assertion_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
