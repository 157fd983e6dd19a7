#include "teratron/models/gpt/sft/conversations.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/ranges.h>

#include "teratron/tokenizer/chat/ordered_json.h"

namespace teratron {

namespace {

using nlohmann::ordered_json;

constexpr const char* line_forms =
    R"(Write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]})";
constexpr std::array roles = {"system", "developer", "user", "assistant", "tool"};

// ShareGPT's names.
constexpr std::pair<std::string_view, std::string_view> translated_roles[] = {
    {"human", "user"},      {"gpt", "assistant"},    {"chatgpt", "assistant"},
    {"model", "assistant"}, {"observation", "tool"}, {"function_call", "assistant"},
};

UserError wrong(std::string what, const std::string& where, std::string fix) {
  return data_error({.what = std::move(what), .where = where, .fix = std::move(fix)});
}

const ordered_json& field(const ordered_json& object, const char* name, const std::string& where) {
  if (!object.is_object()) throw wrong("a message is not a JSON object", where, line_forms);
  const auto found = object.find(name);
  if (found == object.end()) throw wrong(fmt::format("a message has no \"{}\"", name), where, line_forms);
  return *found;
}

std::string content_of(const ordered_json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  const auto refuse = [&] {
    return wrong("the content of a message is not a text", where, "Write a text; only texts are learned");
  };
  if (!value.is_array()) throw refuse();
  std::string text;
  for (const ordered_json& part : value) {
    const bool is_text = part.is_object() && part.value("type", ordered_json()) == "text" &&
                         part.value("text", ordered_json()).is_string();
    if (!is_text) throw refuse();
    text += part.at("text").get<std::string>();
  }
  return text;
}

std::string role_of(const ordered_json& value, const std::string& where) {
  std::string role = value.is_string() ? value.get<std::string>() : value.dump();
  for (const auto& [name, translated] : translated_roles) {
    if (role == name) role = translated;
  }
  if (std::find(roles.begin(), roles.end(), role) == roles.end()) {
    throw wrong(fmt::format("unknown role '{}'", printable(role, 40)), where,
                fmt::format("Use {}", fmt::join(roles, ", ")));
  }
  return role;
}

// The names of role and content.
struct FieldNames {
  const char* role;
  const char* content;
};
constexpr FieldNames openai_names = {"role", "content"}, sharegpt_names = {"from", "value"};

ChatMessage message_of(const ordered_json& value, const FieldNames& names, const std::string& where) {
  ChatMessage message{.role = role_of(field(value, names.role, where), where), .content = ""};
  const bool calls =
      value.contains("tool_calls") && value["tool_calls"].is_array() && !value["tool_calls"].empty();
  if (calls && (!value.contains(names.content) || value[names.content].is_null())) {
    message.more["content"] = nullptr;
  } else {
    message.content = content_of(field(value, names.content, where), where);
  }
  for (const auto& [name, member] : value.items()) {
    if (name != names.role && name != names.content && !member.is_null()) message.more[name] = member;
  }
  return message;
}

std::vector<ChatMessage> messages_of(const ordered_json& list, FieldNames names, const std::string& where) {
  if (!list.is_array()) throw wrong("the messages are not a list", where, line_forms);
  // Either pair of names may be in either list.
  const auto has = [&](const FieldNames& each) {
    return !list.empty() && list[0].is_object() && list[0].contains(each.role) &&
           list[0].contains(each.content);
  };
  if (!has(names) && has(openai_names)) names = openai_names;
  if (!has(names) && has(sharegpt_names)) names = sharegpt_names;
  std::vector<ChatMessage> messages;
  for (const ordered_json& each : list) messages.push_back(message_of(each, names, where));
  return messages;
}

// A text is a message of this role.
std::vector<ChatMessage> side_of(const ordered_json& value, const char* role, const std::string& where) {
  if (value.is_string()) return {{role, value.get<std::string>()}};
  return messages_of(value, openai_names, where);
}

std::string text_in(const ordered_json& line, const char* name, const std::string& where) {
  const auto found = line.find(name);
  if (found == line.end() || found->is_null()) return "";
  if (!found->is_string())
    throw wrong(fmt::format("\"{}\" is not a text", name), where,
                R"(Write {"instruction": "...", "input": "...", "output": "..."})");
  return found->get<std::string>();
}

// {"instruction", "input", "output"}, with "system" and "history": [[question, answer], ...]
std::vector<ChatMessage> alpaca_messages(const ordered_json& line, const std::string& where) {
  std::vector<ChatMessage> messages;
  if (const std::string system = text_in(line, "system", where); !system.empty())
    messages.push_back({"system", system});
  for (const ordered_json& turn : line.value("history", ordered_json::array())) {
    if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
      throw wrong("\"history\" is not a list of pairs of texts", where,
                  R"(Write [["question", "answer"], ...])");
    messages.push_back({"user", turn[0].get<std::string>()});
    messages.push_back({"assistant", turn[1].get<std::string>()});
  }
  const std::string input = text_in(line, "input", where);
  messages.push_back({"user", text_in(line, "instruction", where) + (input.empty() ? "" : "\n" + input)});
  messages.push_back({"assistant", text_in(line, "output", where)});
  return messages;
}

void require(const ordered_json& line, const char* name, const char* form, const std::string& where) {
  if (!line.contains(name)) throw wrong(fmt::format("the line has no \"{}\"", name), where, form);
}

std::vector<ChatMessage> messages_of_line(const ordered_json& line, const std::string& where) {
  if (!line.is_object()) throw wrong("the line is not a JSON object", where, line_forms);
  if (line.contains("messages")) return messages_of(line["messages"], openai_names, where);
  if (line.contains("conversations")) return messages_of(line["conversations"], sharegpt_names, where);
  if (line.contains("instruction")) {
    require(line, "output", R"(Write {"instruction": "...", "input": "...", "output": "..."})", where);
    return alpaca_messages(line, where);
  }
  if (!line.contains("prompt") && !line.contains("completion"))
    throw wrong("the line has no \"messages\"", where,
                fmt::format("{}, or {}", line_forms,
                            R"("conversations" of "from" and "value", "instruction" and "output", )"
                            R"("prompt" and "completion", or "text")"));
  for (const char* const name : {"prompt", "completion"})
    require(line, name, R"(Write {"prompt": "...", "completion": "..."})", where);
  std::vector<ChatMessage> messages = side_of(line["prompt"], "user", where);
  std::vector<ChatMessage> answer = side_of(line["completion"], "assistant", where);
  messages.insert(messages.end(), std::make_move_iterator(answer.begin()),
                  std::make_move_iterator(answer.end()));
  return messages;
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\n\r\f\v") == text.npos;
}

void check_turns(const std::vector<ChatMessage>& messages, const std::string& where) {
  bool answered = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    answered = true;
    if (is_blank(messages[i].content) && !messages[i].more.contains("tool_calls"))
      throw wrong(fmt::format("message {} is an empty answer of the assistant", i + 1), where,
                  "Write the answer, or leave the conversation out");
    const std::string before = i == 0 ? "" : messages[i - 1].role;
    if (before != "user" && before != "tool")
      throw wrong(fmt::format("message {} of the assistant follows {}", i + 1,
                              before.empty() ? "nothing" : fmt::format("one of role {}", before)),
                  where, "Let the assistant answer a message of role user or tool");
  }
  if (!answered)
    throw wrong("the conversation has no answer of the assistant, so there is nothing to learn", where,
                "Add a message of role assistant, or leave the conversation out");
}

}  // namespace

namespace {

// A system message begins a new conversation.
std::vector<Conversation> conversations_of(const ordered_json& line, const std::string& where) {
  std::vector<ChatMessage> messages = messages_of_line(line, where);
  if (messages.empty())
    throw wrong("the conversation is empty", where, "Give it messages, or remove the line");
  std::vector<Conversation> all;
  for (ChatMessage& message : messages) {
    if (all.empty() || message.role == "system") {
      all.push_back({.where = where});
      all.back().chat.tools = line.value("tools", ordered_json());
    }
    all.back().chat.messages.push_back(std::move(message));
  }
  for (const Conversation& each : all) check_turns(each.chat.messages, where);
  return all;
}

// {"text": "..."} alone.
std::optional<std::string> plain_text(const ordered_json& line, const std::string& where) {
  const bool is_plain = line.is_object() && line.contains("text") && line["text"].is_string() &&
                        !line.contains("messages") && !line.contains("conversations") &&
                        !line.contains("instruction") && !line.contains("prompt");
  if (!is_plain) return std::nullopt;
  std::string text = line["text"].get<std::string>();
  if (is_blank(text)) throw wrong("the text is empty", where, "Write a text, or remove the line");
  return text;
}

}  // namespace

std::vector<Conversation> parse_conversations(std::string_view line, const std::string& where,
                                              std::vector<Problem>& problems) {
  ordered_json value;
  try {
    value = parse_ordered_json(line, {.where = where, .kind = ExitCode::data});
  } catch (const UserError& error) {
    const size_t first = line.find_first_not_of(" \t\r");
    const bool is_json = first == line.npos || line[first] == '{' || line[first] == '[';
    for (Problem each : error.problems()) {
      each.fix = is_json ? "Correct the line, or remove it"
                         : R"(Write texts as lines of {"text": "..."}, or name the file .txt)";
      problems.push_back(std::move(each));
    }
    return {};
  }
  try {
    if (auto text = plain_text(value, where)) return {{.chat = {}, .text = std::move(*text), .where = where}};
    return conversations_of(value, where);
  } catch (const UserError& error) {
    problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    return {};
  }
}

}  // namespace teratron
