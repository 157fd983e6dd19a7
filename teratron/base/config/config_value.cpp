// Conversion of text to typed values and back, and access to the members of the struct that a table
// describes.
#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/ranges.h>

#include "teratron/base/config/config.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace {

// Python's int() and float() accept single underscores between digits and surrounding blanks.
std::string plain_number(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  const size_t end = text.find_last_not_of(" \t");
  text = text.substr(begin, end == std::string_view::npos ? 0 : end + 1 - begin);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::string out;
  const auto digit = [&](size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]));
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_' || i == 0 || !digit(i - 1) || !digit(i + 1)) out += text[i];
  }
  return out;
}

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  const std::string plain = plain_number(text);
  T value{};
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc() || end != plain.data() + plain.size() || plain.empty()) return std::nullopt;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string lower = to_lower(std::string(text));
  for (const std::string_view yes : {"true", "yes", "on", "1"}) {
    if (lower == yes) return true;
  }
  for (const std::string_view no : {"false", "no", "off", "0"}) {
    if (lower == no) return false;
  }
  return std::nullopt;
}

std::string range_text(const FieldTraits& traits) {
  if (std::isfinite(traits.below))
    return fmt::format("Use a value from {} to below {}", traits.min, traits.below);
  if (!std::isfinite(traits.max)) return fmt::format("Use a value of at least {}", traits.min);
  if (!std::isfinite(traits.min)) return fmt::format("Use a value of at most {}", traits.max);
  return fmt::format("Use a value from {} to {}", traits.min, traits.max);
}

bool in_range(const Field& field, double value, std::string_view text, Problem& problem) {
  const FieldTraits& limits = field.traits;
  if (value >= limits.min && value <= limits.max && value < limits.below && std::isfinite(value)) return true;
  problem.what = fmt::format("{} = {} is out of range", field.name, printable(text));
  problem.fix = range_text(field.traits);
  return false;
}

std::optional<int64_t> parse_integer(const Field& field, const std::string& text, Problem& problem) {
  const std::optional<int64_t> value = parse_number<int64_t>(text);
  if (!value) {
    problem.what = fmt::format("{} = '{}' is not a whole number", field.name, printable(text));
    problem.fix = "Use digits only, for a number below 2^63";
    return std::nullopt;
  }
  if (!in_range(field, static_cast<double>(*value), text, problem)) return std::nullopt;
  return value;
}

std::optional<double> parse_real(const Field& field, const std::string& text, Problem& problem) {
  const std::optional<double> value = parse_number<double>(text);
  if (!value) {
    problem.what = fmt::format("{} = '{}' is not a number", field.name, printable(text));
    problem.fix = "Use a number such as 0.1 or 1e-5";
    return std::nullopt;
  }
  if (!in_range(field, *value, text, problem)) return std::nullopt;
  return value;
}

// The choice `text` after aliases; nullopt if it is not valid.
std::optional<std::string> find_choice(const FieldTraits& traits, const std::string& text) {
  if (traits.choices.empty()) return text;
  std::string choice = text;
  for (const std::string& alias : split(traits.choice_aliases)) {
    const size_t equals = alias.find('=');
    if (alias.substr(0, equals) == text) choice = alias.substr(equals + 1);
  }
  const std::vector<std::string> choices = split(traits.choices, '|');
  return std::find(choices.begin(), choices.end(), choice) != choices.end() ? std::optional(choice)
                                                                            : std::nullopt;
}

void reject_choice(const Field& field, const std::string& text, Problem& problem) {
  problem.what = fmt::format("{} = '{}' is not a valid choice", field.name, printable(text));
  problem.fix = fmt::format("Use one of {}", fmt::join(split(field.traits.choices, '|'), ", "));
}

Value parse_string(const Field& field, const std::string& text, Problem& problem) {
  if (text.empty()) {
    problem.what = fmt::format("{} is empty", field.name);
    problem.fix = "Give a value or leave it out";
    return {};
  }
  if (const std::optional<std::string> choice = find_choice(field.traits, text)) return *choice;
  reject_choice(field, text, problem);
  return {};
}

Value parse_list(const Field& field, std::span<const std::string> texts, Problem& problem) {
  if (field.traits.count > 0 && texts.size() != field.traits.count) {
    problem.what = fmt::format("{} needs {} values, not {}", field.name, field.traits.count, texts.size());
    problem.fix = fmt::format("Give {} values separated by blanks", field.traits.count);
    return {};
  }
  const auto parse_all = [&]<typename T>(std::type_identity<T>, const auto& parse) -> Value {
    std::vector<T> values;
    for (const std::string& text : texts) {
      const std::optional<T> value = parse(text);
      if (!value) return {};
      values.push_back(*value);
    }
    return values;
  };
  if (field.type == FieldType::integers) {
    return parse_all(std::type_identity<int64_t>(),
                     [&](const std::string& text) { return parse_integer(field, text, problem); });
  }
  if (field.type == FieldType::reals) {
    return parse_all(std::type_identity<double>(),
                     [&](const std::string& text) { return parse_real(field, text, problem); });
  }
  return parse_all(std::type_identity<std::string>(), [&](const std::string& text) {
    const std::optional<std::string> choice = find_choice(field.traits, text);
    if (!choice) reject_choice(field, text, problem);
    return choice;
  });
}

template <typename T>
Value to_value(const T& member) {
  return member;
}
template <typename T>
Value to_value(const std::optional<T>& member) {
  return member ? Value(*member) : Value();
}

template <typename T>
void assign(T& member, const Value& value) {
  member = std::get<T>(value);
}
template <typename T>
void assign(std::optional<T>& member, const Value& value) {
  member.reset();
  if (!std::holds_alternative<std::monostate>(value)) member = std::get<T>(value);
}

// Calls `function` with a reference to the field's value.
template <typename Function>
auto visit_member(const Field& field, void* object, const Function& function) {
  const auto call = [&]<typename T>(std::type_identity<T>) {
    void* const at = field.storage ? field.storage : static_cast<char*>(object) + field.offset;
    return function(*static_cast<T*>(at));
  };
  switch (field.type) {
    case FieldType::boolean:
      return call(std::type_identity<field::Bool>());
    case FieldType::integer:
      return call(std::type_identity<field::Int>());
    case FieldType::real:
      return call(std::type_identity<field::Float>());
    case FieldType::string:
      return call(std::type_identity<field::String>());
    case FieldType::opt_integer:
      return call(std::type_identity<field::OptInt>());
    case FieldType::opt_real:
      return call(std::type_identity<field::OptFloat>());
    case FieldType::opt_string:
      return call(std::type_identity<field::OptString>());
    case FieldType::integers:
      return call(std::type_identity<field::Ints>());
    case FieldType::reals:
      return call(std::type_identity<field::Floats>());
    case FieldType::strings:
      return call(std::type_identity<field::Strings>());
  }
  TERATRON_ASSERT(false, "field type");
}

// Python's repr(float): the shortest round-trip digits, always with a point or an exponent.
std::string python_real(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

Value parse_value(const Field& field, std::span<const std::string> values, Problem& problem) {
  if (is_list(field.type)) return parse_list(field, values, problem);
  if (values.size() != 1) {
    problem.what = values.empty() ? fmt::format("{} needs a value", field.name)
                                  : fmt::format("{} takes one value, not {}", field.name, values.size());
    problem.fix = "Give one value after the flag";
    return {};
  }
  const std::string& text = values[0];
  switch (field.type) {
    case FieldType::boolean:
      if (const std::optional<bool> value = parse_bool(text)) return *value;
      problem.what = fmt::format("{} = '{}' is neither true nor false", field.name, printable(text));
      problem.fix = "Use true or false";
      return {};
    case FieldType::integer:
    case FieldType::opt_integer:
      return to_value(parse_integer(field, text, problem));
    case FieldType::real:
    case FieldType::opt_real:
      return to_value(parse_real(field, text, problem));
    default:
      return parse_string(field, text, problem);
  }
}

Value get_value(const Field& field, const void* object) {
  return visit_member(field, const_cast<void*>(object), [](const auto& member) { return to_value(member); });
}

void set_value(const Field& field, const Value& value, void* object) {
  visit_member(field, object, [&](auto& member) { assign(member, value); });
}

std::string python_str(const Value& value) {
  struct Printer {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool v) const { return v ? "True" : "False"; }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return python_real(v); }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<int64_t>& v) const {
      return v.empty() ? "None" : fmt::format("[{}]", fmt::join(v, ", "));
    }
    std::string operator()(const std::vector<double>& v) const {
      std::string out;
      for (const double number : v) out += (out.empty() ? "" : ", ") + python_real(number);
      return v.empty() ? "None" : "[" + out + "]";
    }
    std::string operator()(const std::vector<std::string>& v) const {
      if (v.empty()) return "None";
      std::string out = "[";
      for (const std::string& text : v) out += fmt::format("{}'{}'", out.size() > 1 ? ", " : "", text);
      return out + "]";
    }
  };
  return std::visit(Printer{}, value);
}

}  // namespace teratron
