#include "teratron/tokenizer/jinja/values/json_text.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::jinja {

Value value_of_json(Workspace& workspace, const nlohmann::ordered_json& json) {
  const Workspace::Nested nested(workspace);
  workspace.work(kStepWork);
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        throw workspace.error("an integer of the conversation has more than 64 bits", "Write it as a text");
      [[fallthrough]];
    case nlohmann::json::value_t::number_integer:
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_float:
      return json.get<double>();
    case nlohmann::json::value_t::string:
      return workspace.keep(json.get_ref<const std::string&>());
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      for (const auto& each : json) items.push_back(value_of_json(workspace, each));
      return workspace.list(items);
    }
    case nlohmann::json::value_t::object: {
      // Keys differ, so they need no look for others.
      const auto members = workspace.array<std::pair<Value, Value>>(json.size());
      size_t size = 0;
      for (const auto& [key, member] : json.items())
        members[size++] = {workspace.keep(key), value_of_json(workspace, member)};
      return static_cast<const Dict*>(workspace.make(Dict{members}));
    }
    default:
      return None{};
  }
}

constexpr int64_t widest_indent = 1000;

JsonStyle json_style(Workspace& workspace, const Arguments& arguments) {
  const auto given = arguments.bind(workspace, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = given[0] && is_true(*given[0]), .sorted = given[3] && is_true(*given[3])};
  if (given[1] && !given[1]->is_none()) {
    style.several_lines = true;
    style.item_separator = ",";
    if (given[1]->is_text()) {
      style.indent = given[1]->text();
    } else {
      const int64_t width = integer_argument(workspace, given[1], 0);
      if (width > widest_indent) throw workspace.error("the indent of tojson is too large");
      style.indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (given[2] && !given[2]->is_none()) {
    const auto separators = elements(workspace, *given[2]);
    if (separators.size() != 2) throw workspace.error("tojson needs two separators");
    style.item_separator = text_argument(workspace, separators[0]);
    style.key_separator = text_argument(workspace, separators[1]);
  }
  return style;
}

namespace {

class JsonWriter {
 public:
  JsonWriter(Workspace& workspace, const JsonStyle& style)
      : workspace_(workspace), style_(style), out_(workspace) {}

  void write(const Value& value, int64_t level) {
    const Workspace::Nested nested(workspace_);
    if (value.is_text()) {
      string(value.text());
    } else if (const auto* const list = value.get_if<const List*>()) {
      if ((*list)->kind == ListKind::view || (*list)->kind == ListKind::generator) refuse(value);
      items(**list, level);
    } else if (const auto* const dict = value.get_if<const Dict*>()) {
      members(**dict, level);
    } else if (value.is_none() || value.number()) {
      out_ << scalar(value);
    } else {
      refuse(value);
    }
  }

  std::string take() { return out_.take(); }

 private:
  void refuse(const Value& value) {
    throw workspace_.error(fmt::format("'{}' has no JSON text", type_name(value)));
  }

  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const bool* const flag = value.get_if<bool>()) return *flag ? "true" : "false";
    if (const int64_t* const integer = value.get_if<int64_t>()) return std::to_string(*integer);
    const double number = value.number().value();
    if (std::isnan(number)) return "NaN";
    return std::isinf(number) ? number < 0 ? "-Infinity" : "Infinity" : float_text(number);
  }

  void new_line(int64_t level) {
    if (!style_.several_lines) return;
    out_ << "\n";
    out_.repeat(style_.indent, level);
  }

  void items(const List& list, int64_t level) {
    if (list.items.empty()) {
      out_ << "[]";
      return;
    }
    out_ << "[";
    std::string_view separator;
    for (const Value& each : list.items) {
      out_ << separator;
      new_line(level + 1);
      write(each, level + 1);
      separator = style_.item_separator;
    }
    new_line(level);
    out_ << "]";
  }

  void members(const Dict& dict, int64_t level) {
    if (dict.members.empty()) {
      out_ << "{}";
      return;
    }
    std::vector<std::pair<Value, Value>> all(dict.members.begin(), dict.members.end());
    workspace_.work(all.size() * sizeof all[0]);
    if (style_.sorted) {
      std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
        return compare(workspace_, a.first, b.first) < 0;
      });
    }
    out_ << "{";
    std::string_view separator;
    for (const auto& [key, value] : all) {
      out_ << separator;
      new_line(level + 1);
      if (!key.is_text() && !key.is_none() && !key.number()) refuse(key);
      string(key.is_text() ? std::string(key.text()) : scalar(key));
      out_ << style_.key_separator;
      write(value, level + 1);
      separator = style_.item_separator;
    }
    new_line(level);
    out_ << "}";
  }

  void string(std::string_view text) {
    static constexpr std::string_view special = "\"\\\n\r\t\f\b", letters = "\"\\nrtfb";
    out_ << "\"";
    for (const char* p = text.data(); p < text.data() + text.size();) {
      const char* const begin = p;
      const uint32_t code = unicode::next(p);
      const size_t found = code < 0x80 ? special.find(static_cast<char>(code)) : special.npos;
      if (found != special.npos) {
        out_ << std::string{'\\', letters[found]};
      } else if (code < 0x20 || (style_.ascii && code > 0x7e && code < 0x10000)) {
        out_ << fmt::format("\\u{:04x}", code);
      } else if (style_.ascii && code >= 0x10000) {
        const uint32_t offset = code - 0x10000;
        out_ << fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (offset >> 10), 0xdc00 + (offset & 0x3ff));
      } else {
        out_ << std::string_view(begin, static_cast<size_t>(p - begin));
      }
    }
    out_ << "\"";
  }

  Workspace& workspace_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

std::string json_text(Workspace& workspace, const Value& value, const JsonStyle& style) {
  JsonWriter writer(workspace, style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace teratron::jinja
