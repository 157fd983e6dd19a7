// The table of Arguments, one row per line of arguments.def, and the tables of other flags.
#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <type_traits>

#include "teratron/settings/arguments.h"
#include "teratron/settings/help_rows.h"

namespace teratron {

namespace {

static_assert(std::is_standard_layout_v<Arguments>, "fields are reached by offset");

// Rows without a name are headings.
constexpr Field rows_and_headings[] = {
#define ROW(STATUS, IS_MODEL, TYPE, NAME, SINCE, HELP, ...) \
  {.name = #NAME,                                           \
   .type = field_type<field::TYPE>(),                       \
   .status = FieldStatus::STATUS,                           \
   .offset = offsetof(Arguments, NAME),                     \
   .since = SINCE,                                          \
   .help = HELP,                                            \
   .traits = FieldTraits{__VA_ARGS__},                      \
   .model = IS_MODEL},
#define GROUP(TITLE, PROGRAMS, ...) {.traits = {.program = PROGRAMS}, .group = TITLE},
#define FIELD(TYPE, NAME, INITIAL, ...) ROW(active, false, TYPE, NAME, __VA_ARGS__)
#define MODEL(TYPE, NAME, INITIAL, ...) ROW(active, true, TYPE, NAME, __VA_ARGS__)
#define PLANNED(TYPE, NAME, INITIAL, ...) ROW(planned, false, TYPE, NAME, __VA_ARGS__)
#define NO_OP(TYPE, NAME, INITIAL, ...) ROW(no_op, false, TYPE, NAME, __VA_ARGS__)
#define DERIVED(TYPE, NAME, INITIAL, ...) ROW(derived, false, TYPE, NAME, __VA_ARGS__)
#include "teratron/settings/arguments.def"
#undef ROW
#undef GROUP
#undef FIELD
#undef MODEL
#undef PLANNED
#undef NO_OP
#undef DERIVED
};

// A heading, and the one that programs have in its place whose rows below it are about something else.
struct Heading {
  std::string_view title, programs, other = {}, other_programs = {};
};

constexpr Heading headings[] = {
#define GROUP(...) Heading{__VA_ARGS__},
#define FIELD(...)
#define MODEL(...)
#define PLANNED(...)
#define NO_OP(...)
#define DERIVED(...)
#include "teratron/settings/arguments.def"
#undef GROUP
#undef FIELD
#undef MODEL
#undef PLANNED
#undef NO_OP
#undef DERIVED
};

constexpr size_t count_fields() {
  size_t count = 0;
  for (const Field& row : rows_and_headings) count += row.name.empty() ? 0 : 1;
  return count;
}

constexpr auto make_fields() {
  std::array<Field, count_fields()> fields;
  Field heading;
  size_t used = 0;
  for (const Field& row : rows_and_headings) {
    if (row.name.empty()) {
      heading = row;
      continue;
    }
    Field& field = fields[used++];
    field = row;
    field.group = heading.group;
    if (field.traits.program.empty()) field.traits.program = heading.traits.program;
  }
  return fields;
}

constexpr auto fields = make_fields();

constexpr CompatFlag compat_flags[] = {
#define ALIAS(flag, values, since, assignments) \
  {flag, values, CompatFlag::Verdict::alias, since, assignments},
#define NO_OP(flag, values, since, reason) {flag, values, CompatFlag::Verdict::no_op, since, reason},
#define NO_OP_OF(flag, choices, since, reason) {flag, 1, CompatFlag::Verdict::no_op, since, reason, choices},
#define REFUSED(flag, values, since, reason) {flag, values, CompatFlag::Verdict::refused, since, reason},
#include "teratron/settings/compat_flags.def"
#undef ALIAS
#undef NO_OP
#undef NO_OP_OF
#undef REFUSED
};

constexpr std::string_view later_flags =
#include "teratron/settings/later_flags.def"
    ;

constexpr ForeignFlag foreign_flags[] = {
#define FOREIGN(name, answer) {name, answer},
#include "teratron/settings/foreign_flags.def"
#undef FOREIGN
};

}  // namespace

std::string_view heading_in(const ProgramNames& program, std::string_view group) {
  const Heading* const heading = std::ranges::find(headings, group, &Heading::title);
  if (heading == std::end(headings) || heading->other.empty()) return group;
  return is_for({.traits = {.program = heading->other_programs}}, program) ? heading->other : group;
}

Field reworded(std::string_view name, std::string_view help, std::string_view choices) {
  Field field = arguments_schema().field(name);
  field.help = help;
  if (!choices.empty()) field.traits.choices = choices;
  return field;
}

const Schema& arguments_schema() {
  static const Schema schema({.fields = fields,
                              .compat_flags = compat_flags,
                              .later_flags = later_flags,
                              .foreign_flags = foreign_flags});
  return schema;
}

}  // namespace teratron
