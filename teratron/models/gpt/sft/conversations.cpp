#include "teratron/models/gpt/sft/conversations.h"

#include <algorithm>
#include <array>
#include <utility>

#include "teratron/base/json.h"

namespace teratron {

namespace {

using nlohmann::json;

constexpr const char* line_forms =
    R"(Write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]})";
constexpr std::array roles = {"system", "user", "assistant", "tool"};

// ShareGPT's names.
constexpr std::pair<std::string_view, std::string_view> translated_roles[] = {
    {"human", "user"},      {"gpt", "assistant"},    {"chatgpt", "assistant"},
    {"model", "assistant"}, {"observation", "tool"},
};

UserError wrong(std::string what, const std::string& where, std::string fix) {
  return data_error({.what = std::move(what), .where = where, .fix = std::move(fix)});
}

const json& field(const json& object, const char* name, const std::string& where) {
  if (!object.is_object()) throw wrong("a message is not a JSON object", where, line_forms);
  const auto found = object.find(name);
  if (found == object.end()) throw wrong(fmt::format("a message has no \"{}\"", name), where, line_forms);
  return *found;
}

std::string content_of(const json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  const auto refuse = [&] {
    return wrong("the content of a message is not a text", where, "Write a text; only texts are learned");
  };
  if (!value.is_array()) throw refuse();
  std::string text;
  for (const json& part : value) {
    const bool is_text =
        part.is_object() && part.value("type", json()) == "text" && part.value("text", json()).is_string();
    if (!is_text) throw refuse();
    text += part.at("text").get<std::string>();
  }
  return text;
}

std::string role_of(const json& value, const std::string& where) {
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

struct FieldNames {
  const char* role;
  const char* content;
};

std::vector<ChatMessage> messages_of(const json& list, const FieldNames& names, const std::string& where) {
  if (!list.is_array()) throw wrong("the messages are not a list", where, line_forms);
  std::vector<ChatMessage> messages;
  for (const json& each : list) {
    messages.push_back({role_of(field(each, names.role, where), where),
                        content_of(field(each, names.content, where), where)});
  }
  return messages;
}

// A text is a message of this role.
std::vector<ChatMessage> side_of(const json& value, const char* role, const std::string& where) {
  if (value.is_string()) return {{role, value.get<std::string>()}};
  return messages_of(value, {"role", "content"}, where);
}

std::vector<ChatMessage> messages_of_line(const json& line, const std::string& where) {
  if (!line.is_object()) throw wrong("the line is not a JSON object", where, line_forms);
  if (line.contains("messages")) return messages_of(line["messages"], {"role", "content"}, where);
  if (line.contains("conversations")) return messages_of(line["conversations"], {"from", "value"}, where);
  if (!line.contains("prompt") && !line.contains("completion"))
    throw wrong("the line has no \"messages\"", where, line_forms);
  for (const char* const name : {"prompt", "completion"}) {
    if (!line.contains(name))
      throw wrong(fmt::format("the line has no \"{}\"", name), where,
                  R"(Write {"prompt": "...", "completion": "..."})");
  }
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
    if (is_blank(messages[i].content))
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

std::vector<Conversation> parse_conversations(std::string_view line, const std::string& where,
                                              std::vector<Problem>& problems) {
  try {
    std::vector<ChatMessage> messages =
        messages_of_line(parse_json(line, {.where = where, .kind = ExitCode::data}), where);
    if (messages.empty())
      throw wrong("the conversation is empty", where, "Give it messages, or remove the line");
    std::vector<Conversation> all;
    for (ChatMessage& message : messages) {
      if (all.empty() || message.role == "system") all.push_back({{}, where});
      all.back().messages.push_back(std::move(message));
    }
    for (const Conversation& each : all) check_turns(each.messages, where);
    return all;
  } catch (const UserError& error) {
    problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    return {};
  }
}

}  // namespace teratron
