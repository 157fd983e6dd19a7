// Texts to typed values and back, and access to the members of the struct that a table describes.
#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/ranges.h>

#include "teratron/base/config/config.h"

namespace teratron {

namespace {

// Python's int() and float() allow one underscore between digits and blanks around.
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
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view yes : {"true", "yes", "on", "1"}) {
    if (lower == yes) return true;
  }
  for (const std::string_view no : {"false", "no", "off", "0"}) {
    if (lower == no) return false;
  }
  return std::nullopt;
}

std::string range_text(const FieldTraits& traits) {
  if (!std::isfinite(traits.max)) return fmt::format("Use a value of at least {}", traits.min);
  if (!std::isfinite(traits.min)) return fmt::format("Use a value of at most {}", traits.max);
  return fmt::format("Use a value from {} to {}", traits.min, traits.max);
}

bool in_range(const Field& field, double value, std::string_view text, Problem& problem) {
  if (value >= field.traits.min && value <= field.traits.max && std::isfinite(value)) return true;
  problem.what = fmt::format("{} = {} is out of range", field.name, printable(text));
  problem.fix = range_text(field.traits);
  return false;
}

std::optional<int64_t> parse_integer(const Field& field, const std::string& text, Problem& problem) {
  const std::optional<int64_t> value = parse_number<int64_t>(text);
  if (!value) {
    problem.what = fmt::format("{} = '{}' is not an integer of 64 bits", field.name, printable(text));
    problem.fix = "Use digits only";
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

// The choice that `text` names, after aliases; nullopt when there is none.
std::optional<std::string> find_choice(const FieldTraits& traits, const std::string& text) {
  if (traits.choices.empty()) return text;
  std::string wanted = text;
  const std::string aliases = fmt::format(" {} ", traits.choice_aliases);
  if (const size_t at = aliases.find(fmt::format(" {}=", text)); !text.empty() && at != std::string::npos) {
    const size_t begin = at + text.size() + 2;
    wanted = aliases.substr(begin, aliases.find(' ', begin) - begin);
  }
  const std::string choices = fmt::format("|{}|", traits.choices);
  const bool known =
      wanted.find('|') == std::string::npos && choices.find(fmt::format("|{}|", wanted)) != std::string::npos;
  return known && !wanted.empty() ? std::optional(wanted) : std::nullopt;
}

Value parse_text(const Field& field, const std::string& text, Problem& problem) {
  if (text.empty()) {
    problem.what = fmt::format("{} is empty", field.name);
    problem.fix = "Give a value or leave it out";
    return {};
  }
  const std::optional<std::string> choice = find_choice(field.traits, text);
  if (choice) return *choice;
  std::string choices(field.traits.choices);
  for (size_t at = 0; (at = choices.find('|', at)) != std::string::npos; at += 2)
    choices.replace(at, 1, ", ");
  problem.what = fmt::format("{} = '{}' is not a valid choice", field.name, printable(text));
  problem.fix = fmt::format("Use one of {}", choices);
  return {};
}

Value parse_list(const Field& field, std::span<const std::string> texts, Problem& problem) {
  if (field.traits.count > 0 && texts.size() != field.traits.count) {
    problem.what = fmt::format("{} needs {} values, not {}", field.name, field.traits.count, texts.size());
    problem.fix = fmt::format("Give {} values with blanks between", field.traits.count);
    return {};
  }
  if (field.type == FieldType::texts) return std::vector<std::string>(texts.begin(), texts.end());
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) {
    const std::optional<int64_t> number = parse_integer(field, text, problem);
    if (!number) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

template <typename T>
T& member(const Field& field, void* object) {
  if (field.place) return *static_cast<T*>(field.place);
  return *reinterpret_cast<T*>(static_cast<char*>(object) + field.offset);
}
template <typename T>
const T& member(const Field& field, const void* object) {
  if (field.place) return *static_cast<const T*>(field.place);
  return *reinterpret_cast<const T*>(static_cast<const char*>(object) + field.offset);
}

template <typename T>
Value maybe(const std::optional<T>& value) {
  return value ? Value(*value) : Value();
}

template <typename T>
void assign_maybe(const Field& field, const Value& value, void* object) {
  auto& target = member<std::optional<T>>(field, object);
  if (std::holds_alternative<std::monostate>(value)) {
    target.reset();
  } else {
    target = std::get<T>(value);
  }
}

// As Python's repr(float): the shortest digits that read back the same, always with a point or an exponent.
std::string python_real(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

Value parse_value(const Field& field, std::span<const std::string> texts, Problem& problem) {
  if (field.type == FieldType::integers || field.type == FieldType::texts)
    return parse_list(field, texts, problem);
  if (texts.size() != 1) {
    problem.what = texts.empty() ? fmt::format("{} needs a value", field.name)
                                 : fmt::format("{} takes one value, not {}", field.name, texts.size());
    problem.fix = "Give one value after the flag";
    return {};
  }
  const std::string& text = texts[0];
  switch (field.type) {
    case FieldType::boolean:
      if (const std::optional<bool> value = parse_bool(text)) return *value;
      problem.what = fmt::format("{} = '{}' is neither true nor false", field.name, printable(text));
      problem.fix = "Use true or false";
      return {};
    case FieldType::integer:
    case FieldType::maybe_integer:
      return maybe(parse_integer(field, text, problem));
    case FieldType::real:
    case FieldType::maybe_real:
      return maybe(parse_real(field, text, problem));
    default:
      return parse_text(field, text, problem);
  }
}

Value get_value(const Field& field, const void* object) {
  switch (field.type) {
    case FieldType::boolean:
      return member<bool>(field, object);
    case FieldType::integer:
      return member<int64_t>(field, object);
    case FieldType::real:
      return member<double>(field, object);
    case FieldType::text:
      return member<std::string>(field, object);
    case FieldType::maybe_integer:
      return maybe(member<field::MaybeInt>(field, object));
    case FieldType::maybe_real:
      return maybe(member<field::MaybeReal>(field, object));
    case FieldType::maybe_text:
      return maybe(member<field::MaybeText>(field, object));
    case FieldType::integers:
      return member<field::Ints>(field, object);
    case FieldType::texts:
      return member<field::Texts>(field, object);
  }
  TERATRON_ASSERT(false, "field type");
}

void set_value(const Field& field, const Value& value, void* object) {
  switch (field.type) {
    case FieldType::boolean:
      member<bool>(field, object) = std::get<bool>(value);
      return;
    case FieldType::integer:
      member<int64_t>(field, object) = std::get<int64_t>(value);
      return;
    case FieldType::real:
      member<double>(field, object) = std::get<double>(value);
      return;
    case FieldType::text:
      member<std::string>(field, object) = std::get<std::string>(value);
      return;
    case FieldType::maybe_integer:
      return assign_maybe<int64_t>(field, value, object);
    case FieldType::maybe_real:
      return assign_maybe<double>(field, value, object);
    case FieldType::maybe_text:
      return assign_maybe<std::string>(field, value, object);
    case FieldType::integers:
      member<field::Ints>(field, object) = std::get<field::Ints>(value);
      return;
    case FieldType::texts:
      member<field::Texts>(field, object) = std::get<field::Texts>(value);
      return;
  }
}

std::string python_text(const Value& value) {
  struct Printer {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool v) const { return v ? "True" : "False"; }
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return python_real(v); }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<int64_t>& v) const {
      return v.empty() ? "None" : fmt::format("[{}]", fmt::join(v, ", "));
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
