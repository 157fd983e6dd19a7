#include "teratron/cli/tokenizer/chat_command.h"

#include <iostream>

#include "teratron/base/config/command_line.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/settings/arguments.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

namespace {

struct ChatFlags {
  Arguments settings = {};
  bool asks = false;
};

std::vector<ChatMessage> conversation(const std::string& line, const std::string& where) {
  const nlohmann::json value = parse_json(line, {.where = where, .kind = ExitCode::data});
  const auto problem = [&] {
    return data_error({.what = "the line is not a list of messages",
                       .where = where,
                       .fix = R"(Write [{"role": "user", "content": "..."}])"});
  };
  if (!value.is_array()) throw problem();
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& each : value) {
    const bool valid = each.is_object() && each.value("role", nlohmann::json()).is_string() &&
                       each.value("content", nlohmann::json()).is_string();
    if (!valid) throw problem();
    messages.push_back({each.at("role").get<std::string>(), each.at("content").get<std::string>()});
  }
  return messages;
}

void print_conversations(const ChatFlags& flags) {
  const std::optional<ChatTemplate> chat =
      choose_chat_template(flags.settings.chat_template, flags.settings.tokenizer_model.value_or(""));
  if (!chat) {
    throw config_error({.what = "there is no chat template",
                        .where = "--tokenizer-model",
                        .fix = "Give --chat-template NAME, or a tokenizer that has one"});
  }
  int64_t number = 0;
  for (std::string line; next_line(std::cin, line, "standard input");) {
    const std::string where = fmt::format("stdin:{}", ++number);
    const nlohmann::json text = chat->text(conversation(line, where), flags.asks);
    print_line(text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

}  // namespace

int chat_command(std::span<const std::string> args) {
  ChatFlags flags;
  if (!read_command(
          {.name = "teratron tokenizer chat",
           .usage = "[FLAGS]",
           .summary = "Print the text of each conversation of stdin: a JSON list of messages per line.",
           .fields = {bound_setting("chat_template", &flags.settings),
                      bound_setting("tokenizer_model", &flags.settings,
                                    "File or folder of a Hugging Face tokenizer"),
                      bound_field("add_generation_prompt", &flags.asks,
                                  "End with the beginning of an answer")}},
          args))
    return 0;
  print_conversations(flags);
  return 0;
}

}  // namespace teratron
