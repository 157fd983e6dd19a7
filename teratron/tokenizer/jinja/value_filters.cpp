// Filters of single values: texts, numbers, defaults.
#include <cmath>
#include <cstdlib>

#include "teratron/tokenizer/jinja/filters.h"
#include "teratron/tokenizer/jinja/operations.h"
#include "teratron/tokenizer/jinja/values/format.h"
#include "teratron/tokenizer/jinja/values/json_text.h"
#include "teratron/tokenizer/jinja/values/python_text.h"
#include "teratron/tokenizer/jinja/values/text_edits.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::jinja {

namespace {
namespace value_filter {

Value default_value(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"default_value", "boolean"});
  const bool replaces = value.is_undefined() || (given[1] && is_true(*given[1]) && !is_true(value));
  return replaces ? given[0].value_or("") : value;
}

Value upper(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.keep(upper_text(workspace, to_text(workspace, value)));
}

Value lower(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.keep(lower_text(to_text(workspace, value)));
}

Value capitalize(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.keep(capitalized(workspace, to_text(workspace, value)));
}

// Jinja's own: words begin behind blanks, hyphens and brackets only.
Value title(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  const std::string_view text = to_text(workspace, value);
  TextBuilder out(workspace);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("- \t\n\r\f\v({[<", begin), text.size());
    const size_t next = std::min(text.find_first_not_of("- \t\n\r\f\v({[<", end), text.size());
    out << capitalized(workspace, text.substr(begin, end - begin)) << text.substr(end, next - end);
    begin = next;
  }
  return out.keep();
}

Value trim(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"chars"});
  const std::string_view text = to_text(workspace, value);
  workspace.work(text.size());
  if (!given[0] || given[0]->is_none()) return stripped(text, Ends::both);
  return stripped(text, Ends::both, text_argument(workspace, given[0]));
}

Value replace(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"old", "new", "count"});
  if (!given[0] || !given[1]) throw workspace.error("replace needs two texts");
  return workspace.keep(replaced(workspace, to_text(workspace, value),
                                 {.old = to_text(workspace, *given[0]),
                                  .with = to_text(workspace, *given[1]),
                                  .most = integer_argument(workspace, given[2], -1)}));
}

Value indent(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"width", "first", "blank"});
  TextBuilder prefix(workspace);
  if (given[0] && given[0]->is_text()) {
    prefix << given[0]->text();
  } else {
    prefix.repeat(" ", integer_argument(workspace, given[0], 4));
  }
  const bool first = given[1] && is_true(*given[1]), blank = given[2] && is_true(*given[2]);
  require_defined(workspace, value);
  const std::string text = std::string(text_argument(workspace, value)) + "\n";
  TextBuilder out(workspace);
  bool is_first = true;
  for (const std::string_view line : lines(text, false)) {
    if (!is_first) out << "\n";
    if (is_first ? first : blank || !line.empty()) out << prefix.view();
    out << line;
    is_first = false;
  }
  return out.keep();
}

Value center(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const int64_t width = integer_argument(workspace, arguments.bind(workspace, {"width"})[0], 80);
  return workspace.keep(filled_text(workspace, to_text(workspace, value), {width, " ", Ends::both}));
}

Value truncate(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"length", "killwords", "end", "leeway"});
  const int64_t most = integer_argument(workspace, given[0], 255);
  const std::string_view end = given[2] ? text_argument(workspace, given[2]) : "...";
  const std::string_view text = to_text(workspace, value);
  if (count_characters(text) <= most + integer_argument(workspace, given[3], 5)) return text;
  if (most < count_characters(end)) throw workspace.error("truncate has a length below that of its end");
  std::string_view kept = text.substr(0, character_offset(text, most - count_characters(end)));
  if (!given[1] || !is_true(*given[1])) kept = kept.substr(0, kept.rfind(' '));
  TextBuilder out(workspace);
  out << kept << end;
  return out.keep();
}

Value word_count(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  const std::string_view text = to_text(workspace, value);
  workspace.work(text.size());
  int64_t count = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size(); at += character_bytes(text, at)) {
    const char* p = text.data() + at;
    const auto flags = unicode::characters()[unicode::next(p)];
    const bool is_word = (flags & (unicode::letter | unicode::number)) != 0 || text[at] == '_';
    count += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  }
  return count;
}

Value escape(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  std::string text(to_text(workspace, value));
  for (const auto& [old, with] : std::initializer_list<std::pair<const char*, const char*>>{
           {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}})
    text = replaced(workspace, text, {.old = old, .with = with});
  return workspace.keep(text);
}

Value url_encode(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  TextBuilder out(workspace);
  for (const char c : to_text(workspace, value)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    out << (plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c)));
  }
  return out.keep();
}

Value as_text(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return to_text(workspace, value);
}

std::optional<double> parsed_number(std::string_view text) {
  const std::string digits(stripped(text, Ends::both));
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (digits.empty() || *end != '\0' || digits.find_first_of("xXpP") != digits.npos) return std::nullopt;
  return number;
}

Value as_integer(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"default", "base"});
  const Value otherwise = given[0].value_or(0);
  const int64_t base = integer_argument(workspace, given[1], 10);
  if (const auto integer = value.integer()) return *integer;
  if (value.is_text()) {
    const std::string digits(stripped(value.text(), Ends::both));
    char* end = nullptr;
    errno = 0;
    const int64_t integer =
        base >= 2 && base <= 36 ? std::strtoll(digits.c_str(), &end, static_cast<int>(base)) : 0;
    if (end != nullptr && !digits.empty() && *end == '\0' && errno == 0) return integer;
  }
  const auto number = value.is_text() ? parsed_number(value.text()) : value.number();
  if (!number || !(std::abs(*number) < 9.2e18)) return otherwise;
  return static_cast<int64_t>(*number);
}

Value as_float(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"default"});
  const auto number = value.is_text() ? parsed_number(value.text()) : value.number();
  return number ? Value(*number) : given[0].value_or(0.0);
}

Value absolute(Workspace& workspace, const Value& value, const Arguments& arguments) {
  arguments.bind(workspace, {});
  const auto number = value.number();
  if (!number) throw workspace.error(fmt::format("'{}' has no absolute value", type_name(value)));
  return *number < 0 ? signed_value(workspace, "-", value) : value;
}

Value round(Workspace& workspace, const Value& value, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"precision", "method"});
  const auto number = value.number();
  const int64_t precision = integer_argument(workspace, given[0], 0);
  const std::string_view method = given[1] ? text_argument(workspace, given[1]) : "common";
  if (!number) throw workspace.error(fmt::format("'{}' cannot be rounded", type_name(value)));
  if (precision < 0 || precision > 30) throw workspace.error("round has a precision beyond 0 to 30");
  if (method != "common") {
    if (method != "ceil" && method != "floor") throw workspace.error("round knows common, ceil and floor");
    const double scale = std::pow(10.0, static_cast<double>(precision));
    return (method == "ceil" ? std::ceil(*number * scale) : std::floor(*number * scale)) / scale;
  }
  if (value.integer()) return value.integer().value();
  return std::strtod(fmt::format("{:.{}f}", *number, precision).c_str(), nullptr);
}

Value format(Workspace& workspace, const Value& value, const Arguments& arguments) {
  return workspace.keep(percent_format(workspace, to_text(workspace, value),
                                       workspace.list(arguments.positional, ListKind::tuple)));
}

Value attribute(Workspace& workspace, const Value& value, const Arguments& arguments) {
  return attribute_of(workspace, value, text_argument(workspace, arguments.bind(workspace, {"name"})[0]));
}

Value to_json(Workspace& workspace, const Value& value, const Arguments& arguments) {
  return workspace.keep(json_text(workspace, value, json_style(workspace, arguments)));
}

constexpr NamedOperation filters[] = {
    {"abs", absolute},
    {"attr", attribute},
    {"capitalize", capitalize},
    {"center", center},
    {"d", default_value},
    {"default", default_value},
    {"e", escape},
    {"escape", escape},
    {"float", as_float},
    {"format", format},
    {"indent", indent},
    {"int", as_integer},
    {"lower", lower},
    {"replace", replace},
    {"round", round},
    {"safe", as_text},
    {"string", as_text},
    {"title", title},
    {"tojson", to_json},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", upper},
    {"urlencode", url_encode},
    {"wordcount", word_count},
};

}  // namespace value_filter
}  // namespace

std::span<const NamedOperation> value_filters() {
  return value_filter::filters;
}

}  // namespace teratron::jinja
