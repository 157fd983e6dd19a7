#include "teratron/serve/api/chat_tools.h"

#include <algorithm>

namespace teratron {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t most_tools = 128;
constexpr const char* tool_example =
    R"(Write {"type": "function", "function": {"name": "f", "parameters": {...}}})";
// What a function without parameters takes.
constexpr const char* no_parameters =
    R"({"type": "object", "properties": {}, "additionalProperties": false})";

const ordered_json& member(const ordered_json& object, const char* name) {
  static const ordered_json none;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : none;
}

void read_tool(RequestFields& fields, const ordered_json& tool, size_t index, ChatTools& tools) {
  const ordered_json &function = member(tool, "function"), &name = member(function, "name");
  const std::string where = fmt::format("tools[{}]", index);
  if (member(tool, "type") != "function" || !name.is_string() || name == "")
    return fields.problem("tools", where + " is not a function with a name", tool_example);
  const ordered_json& parameters = member(function, "parameters");
  if (!parameters.is_null() && !parameters.is_object())
    return fields.problem("tools", where + ".function.parameters is not a JSON Schema", tool_example);
  const std::string text = name.get<std::string>();
  const std::vector<std::string> known = tools.names();
  if (std::ranges::find(known, text) != known.end())
    return fields.problem("tools", fmt::format("two functions are called {}", printable(text, 80)),
                          "Give them different names");
  const bool is_empty = parameters.is_null() || parameters.empty();
  tools.functions.push_back({.name = text, .parameters = is_empty ? no_parameters : parameters.dump()});
}

// The function that must be called; empty: "none", "auto" or "required", in `word`.
std::string read_choice(RequestFields& fields, std::string& word) {
  std::string name;
  fields.read<json>(
      "tool_choice", "none, auto, required or a function",
      [](const json& v) { return v.is_string() || v.is_object(); },
      [&](const json& v) {
        if (v.is_string()) {
          word = v;
          if (word != "none" && word != "auto" && word != "required")
            fields.problem("tool_choice", fmt::format("there is no tool_choice {}", printable(word, 60)),
                           "Use none, auto, required or a function");
          return;
        }
        const json function = v.value("function", json());
        const bool is_named = v.value("type", json()) == "function" && function.is_object() &&
                              function.value("name", json()).is_string();
        if (is_named) {
          name = function["name"];
        } else {
          fields.problem("tool_choice", "tool_choice names no function",
                         R"(Write {"type": "function", "function": {"name": "f"}})");
        }
      });
  return name;
}

std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::vector<std::string> ChatTools::names() const {
  std::vector<std::string> all;
  for (const Function& each : functions) all.push_back(each.name);
  return all;
}

ChatTools read_tools(RequestFields& fields, const RequestBody& body) {
  ChatTools tools;
  fields.flag("parallel_tool_calls", tools.parallel);
  fields.read<json>(
      "tools", "a list of functions", [](const json& v) { return v.is_array() && v.size() <= most_tools; },
      [&](const json& v) {
        if (v.empty()) return;
        tools.list = body.ordered("tools");
        for (size_t i = 0; i < tools.list.size() && !fields.is_full(); ++i)
          read_tool(fields, tools.list[i], i, tools);
      });
  std::string word;
  const std::string named = read_choice(fields, word);
  if (tools.empty() && (word == "required" || !named.empty())) {
    fields.problem("tool_choice", "a function must be called, but there are no tools", "Add tools");
  } else if (word == "none") {
    return {};
  }
  tools.must_call = word == "required" || !named.empty();
  if (named.empty()) return tools;
  std::erase_if(tools.functions, [&](const ChatTools::Function& each) { return each.name != named; });
  if (tools.empty())
    fields.problem("tool_choice", fmt::format("no tool is called {}", printable(named, 80)),
                   "Use a name of one of the tools");
  tools.parallel = false;
  return tools;
}

ToolFormat tool_format(const ChatTemplate& chat) {
  const ordered_json call = {
      {"id", "call000001"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", {{"x", 1}}}}}};
  Chat shown{.messages = {{"user", "x"}, {"assistant", "", {{"content", nullptr}}}}};
  shown.messages.back().more["tool_calls"] = ordered_json::array({call});
  try {
    const std::string text = chat.text(shown, false);
    const bool is_llama = text.find("<tool_call>") == text.npos && text.find("\"parameters\"") != text.npos;
    return is_llama ? ToolFormat::llama3 : ToolFormat::hermes;
  } catch (const UserError&) {
    return ToolFormat::hermes;
  }
}

void allow_calls(const ChatTools& tools, ToolFormat format, AnswerForm& form) {
  const bool is_hermes = format == ToolFormat::hermes;
  for (const ChatTools::Function& each : tools.functions) {
    const std::string call =
        fmt::format(R"({{"name": {}, "{}": )", quoted(each.name), is_hermes ? "arguments" : "parameters");
    form.some_of.push_back({.before = (is_hermes ? "<tool_call>\n" : "") + call,
                            .after = is_hermes ? "}\n</tool_call>" : "}",
                            .schema = each.parameters,
                            .where = "tools"});
  }
  if (is_hermes && tools.parallel) form.between = "\n";
}

}  // namespace teratron
