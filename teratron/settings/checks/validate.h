// Cross-field checks of settings, called by validate_arguments().
#pragma once

#include "teratron/settings/arguments.h"

namespace teratron {

struct Validation {
  Arguments& args;
  Sources& sources;
  std::vector<std::string>& notices;
  std::vector<Problem> problems = {};

  /// Set by the user, possibly to its default.
  bool chosen(std::string_view name) const;
  /// Where the user set it, else its flag.
  std::string where(std::string_view name) const;
  void reject(std::string_view name, std::string what, std::string fix);
  void note(std::string line) { notices.push_back(std::move(line)); }
  /// Sets an unset or default value and marks it as not set by the user.
  template <typename T, typename U>
  void derive(std::string_view name, T& member, const U& value, std::string_view source = derived_source) {
    member = value;
    sources[std::string(name)] = source;
  }
  struct Divisible {
    std::string_view name;
    int64_t value;
    std::string_view by;  // what `divisor` is
    int64_t divisor;
    std::string_view reason;
    std::string_view what = {};  // what `value` is, if not `name`
    int64_t factor = 1;          // a number that `by` begins with, "2 * "
  };
  /// Rejects `name` unless value % divisor == 0; the fix suggests nearby values.
  bool divisible(const Divisible& check);
};

/// A setting without effect next to others.
struct IgnoredSetting {
  std::string name;
  std::string why;  // "without --fp16"
};
std::vector<IgnoredSetting> ignored_settings(const Arguments& args, const Sources& sources);

/// A size of the model and the number of ranks that it is divided over.
struct DividedSize {
  std::string_view name;
  int64_t value;
  std::string_view by;  // a setting or formula
  int64_t divisor;
  std::vector<std::string> settings;  // that the divisor follows from
  bool either_way = false;            // the size may divide `divisor` instead

  bool fits() const { return value % divisor == 0 || (either_way && value > 0 && divisor % value == 0); }
};
/// Sizes that are set, and divided with these settings.
std::vector<DividedSize> divided_sizes(const Arguments& args);

void derive_mock_defaults(Validation& v);  // before all checks
void check_model(Validation& v);
void check_parallel(Validation& v, int64_t world_size);
void check_batch(Validation& v);
void check_context_parallel(Validation& v);  // after check_model
void check_pipeline(Validation& v);          // after check_batch
void check_schedule(Validation& v);
void check_param_groups(Validation& v);
void check_data(Validation& v);
void check_fp8(Validation& v);
void check_experts(Validation& v);
void check_rules(Validation& v);   // after all that derive values
void warn_ignored(Validation& v);  // last

}  // namespace teratron
