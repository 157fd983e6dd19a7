#include "teratron/cli/tokenizer/chat_command.h"

#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

namespace {

struct ChatFlags {
  std::string name, tokenizer;
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
  const std::optional<std::string> name = flags.name.empty() ? std::nullopt : std::optional(flags.name);
  const std::optional<ChatTemplate> chat = choose_chat_template(name, flags.tokenizer);
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

std::function<bool()> add_chat_command(CLI::App& app) {
  const auto flags = std::make_shared<ChatFlags>();
  CLI::App* const command = app.add_subcommand(
      "chat", "Print the text of each conversation of stdin: a JSON list of messages per line");
  command->add_option("--chat-template", flags->name, "its name; default the tokenizer's");
  command->add_option("--tokenizer-model", flags->tokenizer, "file or folder of a Hugging Face tokenizer");
  command->add_flag("--add-generation-prompt", flags->asks, "end with the beginning of an answer");
  return [flags, command] {
    if (command->parsed()) print_conversations(*flags);
    return command->parsed();
  };
}

}  // namespace teratron
