#include "teratron/tokenizer/jinja/values/format.h"

#include <charconv>
#include <cstdio>

#include "teratron/tokenizer/jinja/values/python_text.h"

namespace teratron::jinja {

namespace {

// %-05.2f
struct Conversion {
  std::string flags;
  int width = 0;
  std::optional<int> precision = {};
  char letter = 's';
};

constexpr int most_width = 500;

int small_number(Workspace& workspace, std::string_view text, size_t& at) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range || value > most_width)
    throw workspace.error("a width in a format is too large");
  at = static_cast<size_t>(end - text.data());
  return value;
}

// What follows a '%'; advances `at`.
Conversion conversion_at(Workspace& workspace, std::string_view text, size_t& at) {
  Conversion conversion;
  while (at < text.size() && std::string_view("-+ #0").find(text[at]) != std::string_view::npos)
    conversion.flags += text[at++];
  conversion.width = small_number(workspace, text, at);
  if (at < text.size() && text[at] == '.') conversion.precision = small_number(workspace, text, ++at);
  if (at == text.size()) throw workspace.error("a format ends within a conversion");
  conversion.letter = text[at++];
  if (std::string_view("srdixXfFeEgG%").find(conversion.letter) == std::string_view::npos)
    throw workspace.error(fmt::format("the format has an unknown conversion '%{}'", conversion.letter));
  return conversion;
}

std::string number_text(Workspace& workspace, const Conversion& conversion, const Value& value) {
  const auto number = value.number();
  if (!number) throw workspace.error(fmt::format("a format needs a number, not '{}'", type_name(value)));
  const bool whole = std::string_view("dixX").find(conversion.letter) != std::string_view::npos;
  const std::string pattern = fmt::format(
      "%{}{}{}{}{}", conversion.flags, conversion.width > 0 ? std::to_string(conversion.width) : "",
      conversion.precision ? fmt::format(".{}", *conversion.precision) : "", whole ? "ll" : "",
      conversion.letter);
  char buffer[2048];
  if (whole) {
    const int64_t integer = value.integer().value_or(static_cast<int64_t>(*number));
    std::snprintf(buffer, sizeof buffer, pattern.c_str(), static_cast<long long>(integer));
  } else {
    std::snprintf(buffer, sizeof buffer, pattern.c_str(), *number);
  }
  return buffer;
}

std::string converted(Workspace& workspace, const Conversion& conversion, const Value& value) {
  if (conversion.letter != 's' && conversion.letter != 'r') return number_text(workspace, conversion, value);
  std::string text(conversion.letter == 'r' && value.is_text() ? std::string_view(quoted_text(value.text()))
                                                               : to_text(workspace, value));
  if (conversion.precision) text.resize(character_offset(text, *conversion.precision));
  const int64_t missing = conversion.width - count_characters(text);
  if (missing <= 0) return text;
  const std::string blanks(static_cast<size_t>(missing), ' ');
  return conversion.flags.find('-') == std::string::npos ? blanks + text : text + blanks;
}

}  // namespace

std::string percent_format(Workspace& workspace, std::string_view text, const Value& values) {
  const auto* const list = values.get_if<const List*>();
  const bool several = list != nullptr && (*list)->kind == ListKind::tuple;
  const std::span<const Value> all = several ? (*list)->items : std::span(&values, 1);
  TextBuilder out(workspace);
  size_t used = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t sign = std::min(text.find('%', at), text.size());
    out << text.substr(at, sign - at);
    at = sign + 1;
    if (sign == text.size()) break;
    const Conversion conversion = conversion_at(workspace, text, at);
    if (conversion.letter == '%') {
      out << "%";
      continue;
    }
    if (used == all.size()) throw workspace.error("a format has more places than values");
    out << converted(workspace, conversion, all[used++]);
  }
  if (used < all.size() && !(values.is<const Dict*>() && used == 0))
    throw workspace.error("a format has fewer places than values");
  return out.take();
}

std::string brace_format(Workspace& workspace, std::string_view text, const Arguments& arguments) {
  TextBuilder out(workspace);
  size_t next = 0;
  const auto value_of = [&](std::string_view name) -> const Value& {
    size_t index = next;
    if (name.empty()) ++next;
    const bool numbered = name.find_first_not_of("0123456789") == name.npos && name.size() < 6;
    if (!name.empty() && numbered) std::from_chars(name.data(), name.data() + name.size(), index);
    if (numbered && index < arguments.positional.size()) return arguments.positional[index];
    for (const auto& [key, value] : arguments.named) {
      if (key == name) return value;
    }
    throw workspace.error(fmt::format("format() has no value for '{{{}}}'", printable(name, 40)));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    out << text.substr(at, brace - at);
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      out << text.substr(brace, 1);
      at = brace + 2;
      continue;
    }
    const size_t end = text.find('}', brace);
    const std::string_view name = end == text.npos ? "" : text.substr(brace + 1, end - brace - 1);
    if (text[brace] == '}' || end == text.npos || name.find_first_of(":!.[") != name.npos)
      throw workspace.error("format() knows {}, {0} and {name} only");
    out << to_text(workspace, value_of(name));
    at = end + 1;
  }
  return out.take();
}

}  // namespace teratron::jinja
