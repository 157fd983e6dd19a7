#include "teratron/serve/api/chat_messages.h"

namespace teratron {

namespace {

using nlohmann::json;

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

ChatMessage read_message(RequestFields& fields, const json& value, size_t index) {
  const std::string where = fmt::format("messages[{}]", index);
  ChatMessage message;
  if (!value.is_object()) {
    fields.problem(where, where + " is not an object", R"(Write {"role": "user", "content": "..."})");
    return message;
  }
  std::optional<std::string> text;
  for (const auto& [name, field] : value.items()) {
    if (name == "role" && field.is_string()) {
      message.role = field;
    } else if (name == "content") {
      text = content_text(field);
    } else if (name != "role" && name != "name" && !is_empty(field)) {
      fields.problem(where, fmt::format("unknown field '{}' in {}", printable(name, 60), where),
                     "Use role and content");
    }
    if (fields.is_full()) break;
  }
  const bool says_nothing =
      message.role == "assistant" && (!value.contains("content") || value["content"].is_null());
  if (!value.contains("role") || !value["role"].is_string())
    fields.problem(where, where + ".role is not a text", "Use system, user or assistant");
  if (!text && !says_nothing)
    fields.problem(where, where + ".content is neither a text nor a list of parts of type text",
                   "Use a text");
  message.content = std::move(text).value_or("");
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

}  // namespace teratron
