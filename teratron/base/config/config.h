// A config field is declared once. From a table of fields come the flags, the YAML keys, --help, the argument
// dump, the JSON copy in checkpoints and docs/flags.md. The table of this program is train/arguments.def.
//
//   reading   read_flags() and set() turn texts into typed Settings; every problem is collected, none is
//   thrown. applying  apply() writes the settings into the struct that the table describes; the last setting
//   of a field wins. writing   dump(), to_json(), help_text(), flags_document().
//
// Underscores and hyphens are the same in a name; a flag may be written "--flag value" or "--flag=value".
// Shortened flags are errors, as in Megatron-LM.
#pragma once

#include <cstdint>
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

/// The types a field can have; MaybeX is "None until set".
namespace field {
using Bool = bool;
using Int = int64_t;
using Real = double;
using Text = std::string;
using MaybeInt = std::optional<int64_t>;
using MaybeReal = std::optional<double>;
using MaybeText = std::optional<std::string>;
using Ints = std::vector<int64_t>;
using Texts = std::vector<std::string>;
}  // namespace field

enum class FieldType : uint8_t {
  boolean,
  integer,
  real,
  text,
  maybe_integer,
  maybe_real,
  maybe_text,
  integers,
  texts
};

/// The type of a C++ member.
template <typename T>
constexpr FieldType field_type() {
  if constexpr (std::is_same_v<T, field::Bool>) return FieldType::boolean;
  if constexpr (std::is_same_v<T, field::Int>) return FieldType::integer;
  if constexpr (std::is_same_v<T, field::Real>) return FieldType::real;
  if constexpr (std::is_same_v<T, field::Text>) return FieldType::text;
  if constexpr (std::is_same_v<T, field::MaybeInt>) return FieldType::maybe_integer;
  if constexpr (std::is_same_v<T, field::MaybeReal>) return FieldType::maybe_real;
  if constexpr (std::is_same_v<T, field::MaybeText>) return FieldType::maybe_text;
  if constexpr (std::is_same_v<T, field::Ints>) return FieldType::integers;
  if constexpr (std::is_same_v<T, field::Texts>) return FieldType::texts;
}

/// What setting a field does here.
enum class FieldStatus : uint8_t {
  effect,    // honoured
  inherent,  // accepted; what it asks for is always so here, or has nothing to act on: one notice line
  planned,   // known, not built yet: any value but the default is refused
  derived,   // computed from others, never set by hand
};

/// Everything about a field that most fields do not need.
struct FieldTraits {
  double min = -std::numeric_limits<double>::infinity();  // smallest and largest value allowed, both included
  double max = std::numeric_limits<double>::infinity();
  std::string_view choices = {};          // "a|b|c": the texts allowed
  std::string_view choice_aliases = {};   // "old=new old2=new2": other spellings of a choice
  std::string_view planned_choices = {};  // "b|c": choices that are known but not built yet
  std::string_view flags = {};            // further spellings that take the same value, separated by blanks
  std::string_view off = {};              // flags that set a boolean to false, separated by blanks
  std::string_view program = {};          // "bert|t5": the only programs in which it has an effect
  std::string_view note = {};             // why it is inherent, or what else to know
  size_t count = 0;                       // a list: exactly so many values (0: any number)
};

struct Field {
  std::string_view name;  // Megatron-LM's Python name: struct member, YAML key; its flag is "--" + hyphens
  FieldType type = FieldType::boolean;
  FieldStatus status = FieldStatus::effect;
  size_t offset = 0;            // of the member in the struct
  std::string_view since = {};  // first Megatron-LM version with it; "here": ours
  std::string_view help = {};   // one sentence
  FieldTraits traits = {};
  std::string_view group = {};  // heading in --help and the docs
  /// Where the value lies when it is no member of the table's struct: the flags of a program built on the library.
  void* place = nullptr;
};

/// A flag that is not a field: an old spelling that means others, or one that is accepted or refused as such.
struct OldFlag {
  enum class Verdict : uint8_t { means, inherent, rejected };
  std::string_view flag;  // as typed, "--checkpoint-activations"
  int values = 0;         // how many values it takes; -1: any number
  Verdict verdict = Verdict::inherent;
  std::string_view since = {};
  std::string_view text = {};  // means: "name=value name=$1", else the reason and what to do
};

using Value = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>,
                           std::vector<std::string>>;

/// One value that was given, and where.
struct Setting {
  const Field* field = nullptr;
  Value value;
  std::string where;  // "--tp", "run.yaml:3:1"
};

/// What was read so far.
struct Settings {
  std::vector<Setting> values;
  std::vector<Problem> problems;
  std::vector<std::string> notices;
  std::vector<std::string>
      unsettled;      // fields that were meant, but whose value is wrong or whose name misspelled
  bool help = false;  // --help was given
};

/// Where the value of each field comes from; fields that are absent have their default.
using Sources = std::map<std::string, std::string, std::less<>>;

/// A table of fields with an index over every spelling.
class Schema {
 public:
  struct Tables {
    std::span<const Field> fields;
    std::span<const OldFlag> old_flags;
    std::string_view later_flags;  // names of flags that are known but not supported, separated by blanks
  };
  struct Target {
    const Field* field = nullptr;  // one of field and old is set, or neither: a later flag
    const OldFlag* old = nullptr;
    bool negated = false;  // "--no-x"
  };

  explicit Schema(const Tables& tables);
  std::span<const Field> fields() const { return tables_.fields; }
  std::span<const OldFlag> old_flags() const { return tables_.old_flags; }
  std::string_view later_flags() const { return tables_.later_flags; }
  /// By flag or key, hyphens and underscores alike, with or without leading "--"; null when unknown.
  const Target* find(std::string_view spelling) const;
  /// The field called `name`; it must exist.
  const Field& field(std::string_view name) const;
  /// The nearest known spelling, or empty when nothing is near.
  std::string nearest(std::string_view spelling) const;

 private:
  void add(std::string_view spelling, const Target& target);
  Tables tables_;
  std::map<std::string, Target, std::less<>> index_;
};

/// One key or flag as it was written.
struct Written {
  std::string key;                 // "--tensor-model-parallel-size", "tensor_model_parallel_size"
  std::vector<std::string> texts;  // its values; empty: a flag without one
  std::string where;               // of the key
  std::string value_where = {};    // of the value, when that is another place
  bool null = false;               // YAML's null: back to the default
};

/// Looks the key up, converts and checks the values, and adds a setting, a notice or problems.
void set(const Schema& schema, const Written& written, Settings& settings);

/// Reads command-line arguments (without the program's name).
void read_flags(const Schema& schema, std::span<const std::string> args, Settings& settings);

/// "num_layers" <-> "--num-layers".
std::string flag_of(std::string_view name);
/// Without leading dashes, hyphens as underscores.
std::string canonical_name(std::string_view spelling);

/// Converts and range-checks one value; on failure returns monostate and fills problem.what and .fix.
Value parse_value(const Field& field, std::span<const std::string> texts, Problem& problem);

/// Value of a member of the struct at `object`; monostate is None.
Value get_value(const Field& field, const void* object);
void set_value(const Field& field, const Value& value, void* object);

/// Turns what nothing honours into problems or notices: planned fields that leave their default are refused,
/// inherent ones and those of another program yield one notice each.
struct ReviewOptions {
  std::string_view program;
  bool refuse_planned = true;
};
void review(const Schema& schema, const void* defaults, const ReviewOptions& options, Settings& settings);

/// Writes the settings into `object`, last one of a field wins, and returns where each came from.
Sources apply(const Settings& settings, void* object);

/// As Python's str(): True, None, 1e-05, ['a', 'b']; an empty list is None, as Megatron-LM's lists are when
/// not given.
std::string python_text(const Value& value);
/// Megatron-LM's dump: header line, "  name ...... value" with dots to column 48, sorted without regard to
/// case, end line.
std::string dump(const Schema& schema, const void* object);
/// A JSON object with every field, in the order of the table.
std::string to_json(const Schema& schema, const void* object);
/// Reads it back into `object`. Returns keys that this version does not know. Throws UserError(checkpoint) on
/// bad text, a wrong type, a value out of range, or a duplicate key; `where` names the file.
std::vector<std::string> from_json(const Schema& schema, std::string_view text, const std::string& where,
                                   void* object);

/// --help: grouped, wrapped at 100 columns. `defaults` is a default-constructed object.
std::string help_text(const Schema& schema, std::string_view usage, const void* defaults);
/// docs/flags.md.
std::string flags_document(const Schema& schema, const void* defaults);

}  // namespace teratron
