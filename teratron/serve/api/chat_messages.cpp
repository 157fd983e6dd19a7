#include "teratron/serve/api/chat_messages.h"

#include "teratron/tokenizer/chat/ordered_json.h"

namespace teratron {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// A text, or parts of type "text".
std::optional<std::string> content_text(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const json& part : content) {
    const bool is_text = part.is_object() && part.contains("type") && part["type"] == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) return std::nullopt;
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Clients send an answer back with all its fields.
bool is_empty(const json& value) {
  return value.empty() || value == "";
}

// {"id", "type", "function": {"name", "arguments"}}; null if it is none.
ordered_json read_call(const json& call, std::string& problem) {
  const json function = call.is_object() ? call.value("function", json()) : json();
  const bool is_call = function.is_object() && function.value("name", json()).is_string() &&
                       function.value("arguments", json()).is_string();
  if (!is_call) {
    problem = "does not call a function by name with arguments, which are a text of JSON";
    return {};
  }
  ordered_json arguments = ordered_json::object();
  const std::string text = function["arguments"];
  try {
    if (!text.empty()) arguments = parse_ordered_json(text, {.where = "", .kind = ExitCode::data});
  } catch (const UserError& error) {
    problem = "has arguments that are not JSON: " + error.problems().front().what;
  }
  ordered_json made = {
      {"type", "function"},
      {"function", {{"name", function["name"].get<std::string>()}, {"arguments", arguments}}}};
  if (call.value("id", json()).is_string()) made["id"] = call["id"].get<std::string>();
  return made;
}

void read_calls(RequestFields& fields, const json& calls, const std::string& where, ChatMessage& message) {
  constexpr const char* fix =
      R"(Write {"id": "...", "type": "function", "function": {"name": "f", "arguments": "{}"}})";
  if (!calls.is_array()) return fields.problem(where, where + ".tool_calls is not a list", fix);
  ordered_json all = ordered_json::array();
  for (size_t i = 0; i < calls.size() && !fields.is_full(); ++i) {
    std::string problem;
    all.push_back(read_call(calls[i], problem));
    if (!problem.empty()) fields.problem(where, fmt::format("{}.tool_calls[{}] {}", where, i, problem), fix);
  }
  message.more["tool_calls"] = std::move(all);
}

// Members beside role and content, which clients send back with all their fields. False: it is unknown.
bool read_other_member(RequestFields& fields, const json::const_iterator& member, const std::string& where,
                       ChatMessage& message) {
  const std::string& name = member.key();
  const json& value = member.value();
  if (is_empty(value)) return true;
  if (name == "tool_calls") {
    read_calls(fields, value, where, message);
    return true;
  }
  const bool passes_on = name == "name" || name == "tool_call_id" || name == "reasoning_content";
  if (!passes_on || !value.is_string()) return false;
  message.more[name] = value.get<std::string>();
  return true;
}

ChatMessage read_message(RequestFields& fields, const json& value, size_t index) {
  const std::string where = fmt::format("messages[{}]", index);
  ChatMessage message;
  if (!value.is_object()) {
    fields.problem(where, where + " is not an object", R"(Write {"role": "user", "content": "..."})");
    return message;
  }
  std::optional<std::string> text;
  for (auto each = value.begin(); each != value.end() && !fields.is_full(); ++each) {
    if (each.key() == "role" && each->is_string()) {
      message.role = *each;
    } else if (each.key() == "content") {
      text = content_text(*each);
    } else if (each.key() != "role" && !read_other_member(fields, each, where, message)) {
      fields.problem(where, fmt::format("unknown field '{}' in {}", printable(each.key(), 60), where),
                     "Use role and content, tool_calls of the assistant, tool_call_id of a tool");
    }
  }
  const bool has_content = value.contains("content") && !value["content"].is_null();
  if (!value.contains("role") || !value["role"].is_string())
    fields.problem(where, where + ".role is not a text", "Use system, user, assistant or tool");
  if (!text && (has_content || message.role != "assistant"))
    fields.problem(where, where + ".content is neither a text nor a list of parts of type text",
                   "Use a text");
  message.content = std::move(text).value_or("");
  // Templates tell calls from texts by it.
  if (!has_content && message.more.contains("tool_calls")) message.more["content"] = nullptr;
  return message;
}

}  // namespace

std::vector<ChatMessage> read_messages(RequestFields& fields) {
  std::vector<ChatMessage> messages;
  if (!fields.has("messages"))
    fields.problem("messages", "there are no messages", R"(Add [{"role": "user", "content": "..."}])");
  fields.read<json>(
      "messages", "a list of messages", [](const json& v) { return v.is_array() && !v.empty(); },
      [&](const json& v) {
        for (size_t i = 0; i < v.size() && !fields.is_full(); ++i)
          messages.push_back(read_message(fields, v[i], i));
      });
  return messages;
}

Chat read_conversation(RequestFields& fields, const ChatTools& tools) {
  Chat conversation{.messages = read_messages(fields), .tools = tools.list};
  fields.read<json>(
      "chat_template_kwargs", "an object", [](const json& v) { return v.is_object(); },
      [&](const json& v) { conversation.variables = v; });
  return conversation;
}

void check_template_writes_tools(const Chat& conversation, const ChatTemplate& chat) {
  if (conversation.tools.is_null()) return;
  Chat without = conversation;
  without.tools = nullptr;
  if (chat.text(conversation, true) != chat.text(without, true)) return;
  throw data_error({.what = fmt::format("the chat template ({}) has no place for tools", chat.name()),
                    .where = "tools",
                    .fix = "Leave them out, or start the server with a --chat-template that writes them"});
}

}  // namespace teratron
