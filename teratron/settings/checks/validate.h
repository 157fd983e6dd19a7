// What the checks of finish() share: the settings, where each came from, and the problems found so far.
#pragma once

#include "teratron/settings/arguments.h"

namespace teratron {

struct Validation {
  Arguments& args;
  Sources& sources;
  std::vector<std::string>& notices;
  std::vector<Problem> problems = {};

  /// The user set it, be it to the default.
  bool chosen(std::string_view name) const;
  /// Where the user set it, else its flag.
  std::string where(std::string_view name) const;
  void reject(std::string_view name, std::string what, std::string fix);
  void note(std::string line);
  /// Records that a value was computed.
  void derived(std::string_view name) { sources[std::string(name)] = "derived"; }
  /// value % divisor == 0, else a problem that names both; the fix lists values near `value`.
  struct Divisible {
    std::string_view name;
    int64_t value;
    std::string_view by;  // what divides it, with its number
    int64_t divisor;
    std::string_view reason;
  };
  bool divisible(const Divisible& check);
};

/// "1, 2, 3, 6" for 6; at most twelve of them.
std::string divisors_text(int64_t value);
/// "12 or 16": the multiples of `step` around `value`.
std::string multiples_text(int64_t value, int64_t step);
/// a * b, or nullopt when it does not fit.
std::optional<int64_t> product(int64_t a, int64_t b);

/// Settings that have nothing to act on beside the others.
struct Inert {
  std::vector<std::string_view> names;
  bool always;           // under these settings
  std::string_view why;  // "--x has no effect" + why
};
/// Those of the model.
std::vector<Inert> inert_model(const Arguments& args);

void check_model(Validation& v);
void check_layers(Validation& v);
void check_parallel(Validation& v, int64_t world_size);
void check_batch(Validation& v);
void check_pipeline(Validation& v);  // after check_batch: it needs the number of micro-batches
void check_schedule(Validation& v);
void check_optimizer(Validation& v);
void check_run(Validation& v);
void check_steps(Validation& v);
void check_precision(Validation& v);
void check_fp8(Validation& v);  // after the model's sizes are known
void check_graphs(Validation& v);
void check_data(Validation& v);
void check_tokenizer(Validation& v);
void check_generation(Validation& v);
void note_inert(Validation& v);  // after all others

}  // namespace teratron
