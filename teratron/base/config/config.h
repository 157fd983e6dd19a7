// Declarative configuration. One table of fields yields the flags, the YAML keys, --help, the argument dump,
// the JSON copy in checkpoints and docs/flags.md. The program's table is settings/arguments.def.
//
//   parse   read_flags() and add_option() convert text to typed values. Problems are collected, not thrown.
//   apply   apply() writes the values to the struct that the table describes; the last value of a field wins.
//   write   dump(), to_json(), help_text(), flags_document().
//
// Hyphens and underscores are interchangeable in names. A flag is written "--flag value" or "--flag=value";
// abbreviations are errors, as in Megatron-LM.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

/// Types of a field. OptX is None until set.
namespace field {
using Bool = bool;
using Int = int64_t;
using Float = double;
using String = std::string;
using OptInt = std::optional<int64_t>;
using OptFloat = std::optional<double>;
using OptString = std::optional<std::string>;
using Ints = std::vector<int64_t>;
using Floats = std::vector<double>;
using Strings = std::vector<std::string>;
}  // namespace field

enum class FieldType : uint8_t {
  boolean,
  integer,
  real,
  string,
  opt_integer,
  opt_real,
  opt_string,
  integers,
  reals,
  strings
};

/// The FieldType of a C++ type.
template <typename T>
constexpr FieldType field_type() {
  if constexpr (std::is_same_v<T, field::Bool>) return FieldType::boolean;
  if constexpr (std::is_same_v<T, field::Int>) return FieldType::integer;
  if constexpr (std::is_same_v<T, field::Float>) return FieldType::real;
  if constexpr (std::is_same_v<T, field::String>) return FieldType::string;
  if constexpr (std::is_same_v<T, field::OptInt>) return FieldType::opt_integer;
  if constexpr (std::is_same_v<T, field::OptFloat>) return FieldType::opt_real;
  if constexpr (std::is_same_v<T, field::OptString>) return FieldType::opt_string;
  if constexpr (std::is_same_v<T, field::Ints>) return FieldType::integers;
  if constexpr (std::is_same_v<T, field::Floats>) return FieldType::reals;
  if constexpr (std::is_same_v<T, field::Strings>) return FieldType::strings;
}

constexpr bool is_list(FieldType type) {
  return type == FieldType::integers || type == FieldType::reals || type == FieldType::strings;
}

enum class FieldStatus : uint8_t {
  active,   // honoured
  no_op,    // accepted with a notice: always so here, or nothing to act on
  planned,  // known but not implemented: any value except the default is refused
  derived,  // computed from other fields, cannot be set
};

/// Optional properties of a field.
struct FieldTraits {
  double min = -std::numeric_limits<double>::infinity();   // inclusive
  double max = std::numeric_limits<double>::infinity();    // inclusive
  double below = std::numeric_limits<double>::infinity();  // exclusive upper limit
  std::string_view choices = {};                           // "a|b|c": the valid strings
  std::string_view choice_aliases = {};                    // "old=new old2=new2": other spellings of a choice
  std::string_view planned_choices = {};                   // "b|c": choices not implemented yet
  std::string_view aliases = {};                           // further flags, separated by blanks
  std::string_view off = {};                               // flags that set a boolean to false
  std::string_view off_help = {};                          // what they do
  std::string_view program = {};                           // "bert|t5": programs that have it; empty: all
  std::string_view note = {};                              // why it is a no-op, or a remark
  size_t count = 0;                                        // exact length of a list (0: any)
  bool required = false;                                   // of a command (command_line.h)
  bool positional = false;                                 // of a command: also takes words without a flag
  bool repeats = false;                                    // of a list: each flag adds to it
  bool secret = false;                                     // nothing shows or stores the value
};

struct Field {
  std::string_view name;  // Megatron-LM's Python name: struct member and YAML key; the flag is "--" + hyphens
  FieldType type = FieldType::boolean;
  FieldStatus status = FieldStatus::active;
  size_t offset = 0;            // of the struct member
  std::string_view since = {};  // first Megatron-LM version with it; "here": Teratron only
  std::string_view help = {};   // one sentence
  FieldTraits traits = {};
  bool model = false;           // defines the model: must match when a checkpoint is loaded
  std::string_view group = {};  // heading in --help and the docs
  void* storage = nullptr;      // of a value outside the struct (bound_field)
};

/// A flag of Megatron-LM that is not a field: an alias of fields, a no-op, or refused with a reason.
struct CompatFlag {
  enum class Verdict : uint8_t { alias, no_op, refused };
  std::string_view flag;  // as typed, "--checkpoint-activations"
  int arity = 0;          // number of values; -1: any
  Verdict verdict = Verdict::no_op;
  std::string_view since = {};
  std::string_view text = {};     // alias: "name=value name=$1", else the reason
  std::string_view choices = {};  // values that the program takes, "a|b"; empty: any
};

/// A flag of another program that is typed by habit.
struct ForeignFlag {
  std::string_view name;    // canonical_name()
  std::string_view answer;  // "--lr", or a sentence that says what to do
};

using Value = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                           std::vector<double>, std::vector<std::string>>;

/// A field set to a value, and where.
struct Assignment {
  const Field* field = nullptr;
  Value value;        // monostate: back to the default
  std::string where;  // "--tp", "run.yaml:3:1"
};

struct ParseResult {
  std::vector<Assignment> assignments;  // in order; the last one of a field wins
  std::vector<Problem> problems;
  std::vector<std::string> notices;
  std::vector<std::string> unresolved;  // fields with an invalid value or a misspelled name
  bool help = false;                    // --help was given
  bool unreadable = false;              // a configuration file could not be read; `problems` says why
};

/// Where each field was set; fields at their default are absent.
using Sources = std::map<std::string, std::string, std::less<>>;

/// The tables with an index over all spellings.
class Schema {
 public:
  struct Tables {
    std::span<const Field> fields;
    std::span<const CompatFlag> compat_flags;
    std::string_view later_flags;  // names of unsupported flags of later versions, separated by blanks
    std::span<const ForeignFlag> foreign_flags = {};
  };
  struct Target {
    const Field* field = nullptr;  // either field or compat is set, or neither: a later flag
    const CompatFlag* compat = nullptr;
    bool negated = false;  // "--no-x"
  };

  explicit Schema(const Tables& tables);
  std::span<const Field> fields() const { return tables_.fields; }
  std::span<const CompatFlag> compat_flags() const { return tables_.compat_flags; }
  std::string_view later_flags() const { return tables_.later_flags; }
  std::span<const ForeignFlag> foreign_flags() const { return tables_.foreign_flags; }
  /// Finds a flag or key, with or without leading "--"; null if unknown.
  const Target* find(std::string_view spelling) const;
  /// The field `name`, which must exist.
  const Field& field(std::string_view name) const;
  /// The closest known spelling, or empty.
  std::string nearest(std::string_view spelling) const;

 private:
  void add(std::string_view spelling, const Target& target);
  Tables tables_;
  std::map<std::string, Target, std::less<>> index_;
};

/// A key or flag before conversion.
struct RawOption {
  std::string key;                  // "--tensor-model-parallel-size", "tensor_model_parallel_size"
  std::vector<std::string> values;  // empty: a flag without a value
  std::string where;                // position of the key
  std::string value_where = {};     // position of the value, if different
  bool null = false;                // YAML null: back to the default
};

/// Resolves the key, converts and checks the values; adds assignments, notices or problems to `result`.
void add_option(const Schema& schema, const RawOption& option, ParseResult& result);

/// Parses command-line arguments (without the program name). Words without a flag are values of the
/// positional fields, one each; a list takes all that are left.
void read_flags(const Schema& schema, std::span<const std::string> args, ParseResult& result);

/// "num_layers" -> "--num-layers".
std::string flag_of(std::string_view name);
/// "--num-layers" -> "num_layers".
std::string canonical_name(std::string_view spelling);
/// The flag that gives a boolean or other field its `value`: the first `off` flag for false, else
/// flag_of(name).
std::string flag_for(const Field& field, const Value& value);

/// Converts and range-checks the values of one option. On failure returns monostate and sets problem.what and
/// .fix.
Value parse_value(const Field& field, std::span<const std::string> values, Problem& problem);

/// Value of the field in the struct at `object`; monostate is None.
Value get_value(const Field& field, const void* object);
void set_value(const Field& field, const Value& value, void* object);

/// A field of a table whose value is `*value`, which holds the default and must outlive the use of the table.
/// `name` has underscores.
template <typename T>
Field bound_field(std::string_view name, T* value, std::string_view help, const FieldTraits& traits = {}) {
  return {.name = name,
          .type = field_type<T>(),
          .since = "here",
          .help = help,
          .traits = traits,
          .storage = value};
}

/// Names of a program: its own first, then sets of programs that it belongs to, {"bert", "training"}.
using ProgramNames = std::vector<std::string>;

/// Whether the field is one of the program's.
bool is_for(const Field& field, const ProgramNames& program);

struct ReviewOptions {
  ProgramNames program;
  bool refuse_planned = true;
  bool models_are_saved = false;  // no notices of fields that define the model, and of those in a file
};
/// Adds a problem for each planned field not at its default, and a notice for each no-op or field of another
/// program.
void review(const Schema& schema, const void* defaults, const ReviewOptions& options, ParseResult& result);

/// Writes the assignments to `object` and returns their sources.
Sources apply(const ParseResult& result, void* object);

/// python_str() of the field's value; "hidden" for a secret.
std::string shown_value(const Field& field, const void* object);

/// Python's str(): True, None, 1e-05, ['a', 'b']. An empty list is None, as unset lists are in Megatron-LM.
std::string python_str(const Value& value);
/// Megatron-LM's listing of the fields that are `shown` (null: all): a header, lines "  name ...... value"
/// with dots up to column 48 sorted case-insensitively, an end line.
std::string dump(const Schema& schema, const void* object,
                 const std::function<bool(const Field&)>& shown = nullptr);
/// The value as YAML, for --config-file.
std::string yaml_value(const Value& value);
/// JSON object of all fields in table order; secrets are null.
std::string to_json(const Schema& schema, const void* object);
/// Inverse of to_json(); returns unknown keys. Throws UserError(checkpoint) on invalid JSON, a wrong type, a
/// value out of range or a duplicate key. `where` names the file.
std::vector<std::string> from_json(const Schema& schema, std::string_view text, const std::string& where,
                                   void* object);

struct HelpOptions {
  std::string_view usage;
  ProgramNames program = {};  // fields of other programs are left out; empty: none
};
/// Text of --help, wrapped at 100 columns. `defaults` is a default-constructed object; null if all fields are
/// bound.
std::string help_text(const Schema& schema, const HelpOptions& options, const void* defaults);
/// Text of docs/flags.md.
std::string flags_document(const Schema& schema, const void* defaults);

}  // namespace teratron
