#include <algorithm>
#include <vector>

#include "teratron/tokenizer/jinja/methods.h"
#include "teratron/tokenizer/jinja/values/format.h"
#include "teratron/tokenizer/jinja/values/python_text.h"
#include "teratron/tokenizer/jinja/values/text_edits.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::jinja {

namespace {
namespace text_method {

template <Ends ends>
Value strip(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"chars"});
  workspace.work(self.text().size());
  if (!given[0] || given[0]->is_none()) return stripped(self.text(), ends);
  return stripped(self.text(), ends, text_argument(workspace, given[0]));
}

Value text_list(Workspace& workspace, const std::vector<std::string_view>& parts) {
  std::vector<Value> values(parts.begin(), parts.end());
  return workspace.list(values);
}

template <bool from_right>
Value split(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"sep", "maxsplit"});
  const int64_t most = integer_argument(workspace, given[1], -1);
  workspace.work(self.text().size());
  if (!given[0] || given[0]->is_none()) {
    if (from_right && most >= 0) throw workspace.error("rsplit() with maxsplit needs a separator");
    return text_list(workspace, words(self.text(), most));
  }
  const std::string_view separator = text_argument(workspace, given[0]);
  if (separator.empty()) throw workspace.error("the separator of split() is empty");
  std::string_view rest = self.text();
  std::vector<std::string_view> parts;
  while (most < 0 || std::ssize(parts) < most) {
    const size_t found = from_right && most >= 0 ? rfind_text(workspace, rest, separator)
                                                 : find_text(workspace, rest, separator, 0);
    if (found == rest.npos) break;
    workspace.work(sizeof(Value));
    const std::string_view before = rest.substr(0, found), behind = rest.substr(found + separator.size());
    parts.push_back(from_right && most >= 0 ? behind : before);
    rest = from_right && most >= 0 ? before : behind;
  }
  parts.push_back(rest);
  if (from_right && most >= 0) std::reverse(parts.begin(), parts.end());
  return text_list(workspace, parts);
}

Value split_lines(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"keepends"});
  workspace.work(self.text().size());
  return text_list(workspace, lines(self.text(), given[0] && is_true(*given[0])));
}

template <bool at_end>
Value has_affix(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"prefix"});
  const auto has = [&](const Value& value) {
    const std::string_view affix = text_argument(workspace, value);
    workspace.work(affix.size());
    return at_end ? self.text().ends_with(affix) : self.text().starts_with(affix);
  };
  if (!given[0] || !given[0]->is<const List*>()) return has(given[0].value_or(Undefined{}));
  const auto all = given[0]->as<const List*>()->items;
  return std::any_of(all.begin(), all.end(), has);
}

template <bool at_end>
Value without_affix(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const std::string_view affix = text_argument(workspace, arguments.bind(workspace, {"prefix"})[0]);
  const std::string_view text = self.text();
  if (at_end && text.ends_with(affix)) return text.substr(0, text.size() - affix.size());
  return !at_end && text.starts_with(affix) ? text.substr(affix.size()) : text;
}

Value replace(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"old", "new", "count"});
  return workspace.keep(replaced(workspace, self.text(),
                                 {.old = text_argument(workspace, given[0]),
                                  .with = text_argument(workspace, given[1]),
                                  .most = integer_argument(workspace, given[2], -1)}));
}

Value upper(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.keep(upper_text(workspace, self.text()));
}

Value lower(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.keep(lower_text(self.text()));
}

Value capitalize(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.keep(capitalized(workspace, self.text()));
}

Value title(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  return workspace.keep(titled(workspace, self.text()));
}

template <bool from_right, bool must_be>
Value find(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const std::string_view wanted = text_argument(workspace, arguments.bind(workspace, {"sub"})[0]);
  const size_t found =
      from_right ? rfind_text(workspace, self.text(), wanted) : find_text(workspace, self.text(), wanted, 0);
  if (found != std::string_view::npos) return count_characters(self.text().substr(0, found));
  if (must_be) throw workspace.error("the text does not have what index() looks for");
  return -1;
}

Value count(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const std::string_view wanted = text_argument(workspace, arguments.bind(workspace, {"sub"})[0]);
  if (wanted.empty()) return count_characters(self.text()) + 1;
  int64_t number = 0;
  for (size_t at = find_text(workspace, self.text(), wanted, 0); at != std::string_view::npos;
       at = find_text(workspace, self.text(), wanted, at + wanted.size()))
    ++number;
  return number;
}

Value join(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"iterable"});
  TextBuilder out(workspace);
  std::string_view separator;
  for (const Value& each : elements(workspace, given[0].value_or(None{}))) {
    if (!each.is_text()) throw workspace.error(fmt::format("join() joins texts, not '{}'", type_name(each)));
    out << separator << each.text();
    separator = self.text();
  }
  return out.keep();
}

template <bool from_right>
Value partition(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const std::string_view separator = text_argument(workspace, arguments.bind(workspace, {"sep"})[0]);
  if (separator.empty()) throw workspace.error("the separator of partition() is empty");
  const std::string_view text = self.text();
  const size_t found =
      from_right ? rfind_text(workspace, text, separator) : find_text(workspace, text, separator, 0);
  Value parts[] = {text, "", ""};
  if (found != text.npos) {
    parts[0] = text.substr(0, found);
    parts[1] = separator;
    parts[2] = text.substr(found + separator.size());
  } else if (from_right) {
    std::swap(parts[0], parts[2]);
  }
  return workspace.list(parts, ListKind::tuple);
}

template <Ends filled>
Value fill(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"width", "fillchar"});
  const int64_t width = integer_argument(workspace, given[0], 0);
  const std::string_view filler = given[1] ? text_argument(workspace, given[1]) : " ";
  return workspace.keep(filled_text(workspace, self.text(), {width, filler, filled}));
}

Value fill_zeros(Workspace& workspace, const Value& self, const Arguments& arguments) {
  const int64_t width = integer_argument(workspace, arguments.bind(workspace, {"width"})[0], 0);
  const std::string_view text = self.text();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  TextBuilder out(workspace);
  out << text.substr(0, sign);
  out.repeat("0", width - count_characters(text));
  out << text.substr(sign);
  return out.keep();
}

template <uint16_t flags>
Value has_only(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  const std::string_view text = self.text();
  workspace.work(text.size());
  for (const char* p = text.data(); p < text.data() + text.size();) {
    if ((unicode::characters()[unicode::next(p)] & flags) == 0) return false;
  }
  return !text.empty();
}

Value is_digits(Workspace& workspace, const Value& self, const Arguments& arguments) {
  arguments.bind(workspace, {});
  const std::string_view text = self.text();
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Value format(Workspace& workspace, const Value& self, const Arguments& arguments) {
  return workspace.keep(brace_format(workspace, self.text(), arguments));
}

constexpr NamedOperation methods[] = {
    {"strip", strip<Ends::both>},
    {"lstrip", strip<Ends::left>},
    {"rstrip", strip<Ends::right>},
    {"split", split<false>},
    {"rsplit", split<true>},
    {"splitlines", split_lines},
    {"startswith", has_affix<false>},
    {"endswith", has_affix<true>},
    {"removeprefix", without_affix<false>},
    {"removesuffix", without_affix<true>},
    {"replace", replace},
    {"upper", upper},
    {"lower", lower},
    {"capitalize", capitalize},
    {"title", title},
    {"find", find<false, false>},
    {"rfind", find<true, false>},
    {"index", find<false, true>},
    {"rindex", find<true, true>},
    {"count", count},
    {"join", join},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"ljust", fill<Ends::right>},
    {"rjust", fill<Ends::left>},
    {"center", fill<Ends::both>},
    {"zfill", fill_zeros},
    {"isspace", has_only<unicode::python_split>},
    {"isalpha", has_only<unicode::letter>},
    {"isalnum", has_only<unicode::letter | unicode::number>},
    {"isdigit", is_digits},
    {"format", format},
};

}  // namespace text_method
}  // namespace

std::span<const NamedOperation> text_methods() {
  return text_method::methods;
}

}  // namespace teratron::jinja
