#include "teratron/cli/tokenizer/chat_command.h"

#include <iostream>
#include <iterator>

#include "teratron/base/config/command_line.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/settings/arguments.h"
#include "teratron/tokenizer/chat/chat_template.h"
#include "teratron/tokenizer/chat/ordered_json.h"

namespace teratron {

namespace {

using nlohmann::ordered_json;

struct ChatFlags {
  Arguments settings = {};
  bool asks = false;
  bool lines = false;
  std::string tools, variables;
};

ordered_json parse(const std::string& text, const std::string& where) {
  return parse_ordered_json(text, {.where = where, .kind = ExitCode::data});
}

std::vector<ChatMessage> messages_of(const ordered_json& list, const std::string& where) {
  const auto problem = [&] {
    return data_error({.what = "the conversation is not a list of messages",
                       .where = where,
                       .fix = R"(Write [{"role": "user", "content": "..."}])"});
  };
  if (!list.is_array()) throw problem();
  std::vector<ChatMessage> messages;
  for (const ordered_json& each : list) {
    if (!each.is_object() || !each.value("role", ordered_json()).is_string()) throw problem();
    ChatMessage message{.role = each.at("role").get<std::string>(), .content = ""};
    const ordered_json content = each.value("content", ordered_json());
    if (content.is_string()) {
      message.content = content.get<std::string>();
    } else {
      message.more["content"] = content;
    }
    for (const auto& [name, value] : each.items()) {
      if (name != "role" && name != "content") message.more[name] = value;
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

// A list of messages, or an object with "messages", "tools" and variables of the template.
Chat chat_of(const ordered_json& value, const ChatFlags& flags, const std::string& where) {
  Chat chat;
  if (!flags.variables.empty()) chat.variables = parse(flags.variables, "--chat-template-kwargs");
  if (!chat.variables.is_null() && !chat.variables.is_object()) {
    throw config_error({.what = "the variables of the template are not a JSON object",
                        .where = "--chat-template-kwargs",
                        .fix = R"(Write {"enable_thinking": false})"});
  }
  if (!flags.tools.empty())
    chat.tools =
        parse(read_text(flags.tools, {.kind = ExitCode::data, .max_bytes = size_t{1} << 24}), flags.tools);
  chat.messages = messages_of(value.is_object() ? value.value("messages", ordered_json()) : value, where);
  if (!value.is_object()) return chat;
  for (const auto& [name, member] : value.items()) {
    if (name == "tools") {
      chat.tools = member;
    } else if (name != "messages") {
      chat.variables[name] = member;
    }
  }
  return chat;
}

ChatTemplate template_of(const Arguments& settings) {
  std::optional<ChatTemplate> chat = choose_chat_template(
      settings.chat_template, settings.tokenizer_model.value_or(settings.hf.value_or("")));
  if (chat) return *chat;
  throw config_error({.what = "there is no chat template",
                      .where = "--tokenizer-model",
                      .fix = "Give --chat-template NAME or FILE, or a tokenizer that has one"});
}

void print_conversations(const ChatFlags& flags) {
  const ChatTemplate chat = template_of(flags.settings);
  if (!flags.lines) {
    std::string input((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
    return print_line(chat.text(chat_of(parse(input, "stdin"), flags, "stdin"), flags.asks));
  }
  int64_t number = 0;
  for (std::string line; next_line(std::cin, line, "standard input");) {
    const std::string where = fmt::format("stdin:{}", ++number);
    const ordered_json text = chat.text(chat_of(parse(line, where), flags, where), flags.asks);
    print_line(text.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }
}

}  // namespace

int chat_command(std::span<const std::string> args) {
  ChatFlags flags;
  if (!read_command(
          {.name = "teratron tokenizer chat",
           .example = "teratron tokenizer chat --hf DIR < conversations.jsonl",
           .usage = "[FLAGS] < CONVERSATION.json",
           .summary =
               "Print the text that a chat template makes of a conversation: a JSON list of messages, or an "
               "object with messages, tools and variables of the template.",
           .fields =
               {bound_setting("chat_template", &flags.settings),
                bound_setting("tokenizer_model", &flags.settings,
                              "File or folder of a Hugging Face tokenizer"),
                bound_setting("hf", &flags.settings, "Folder of a Hugging Face model"),
                bound_field("add_generation_prompt", &flags.asks, "End with the beginning of an answer"),
                bound_field("tools", &flags.tools, "File with a JSON list of functions that may be called"),
                bound_field("chat_template_kwargs", &flags.variables,
                            "Variables of the template as JSON: {\"enable_thinking\": false}"),
                bound_field("jsonl", &flags.lines,
                            "A conversation per line; print each text as a JSON string")}},
          args))
    return 0;
  print_conversations(flags);
  return 0;
}

}  // namespace teratron
