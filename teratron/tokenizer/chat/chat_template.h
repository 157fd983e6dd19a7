// Conversations as text: chat templates as transformers' apply_chat_template() renders them. A template is
// the tokenizer's (tokenizer_config.json, chat_template.jinja), a file with Jinja, or one of these:
//
//   chatml   <|im_start|>user\nHELLO<|im_end|>\n<|im_start|>assistant\n
//   llama2   <s>[INST] <<SYS>>\nSYSTEM\n<</SYS>>\n\nHELLO [/INST] ANSWER </s>
//   llama3   <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHELLO<|eot_id|>...
//   mistral  <s>[INST] HELLO [/INST]ANSWER</s>
//   gemma    <bos><start_of_turn>user\nHELLO<end_of_turn>\n<start_of_turn>model\n
//   zephyr   <|user|>\nHELLO</s>\n<|assistant|>\n
//
// and Megatron-LM's prompt formats for finetuning:
//
//   nemotron-h-aligned  <SPECIAL_11>User\nHELLO\n<SPECIAL_11>Assistant\n
//   nemotron-nano-v2    the same; answers end with <SPECIAL_12>\n, and /think and /no_think are left out
//   identity            the contents as they are
//
// One implementation for the server, the terminal and finetuning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/tokenizer/jinja/jinja_template.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant" or "tool"
  std::string content;
  /// Further members that templates read: tool_calls, reasoning_content. A "content" here, such as null or a
  /// list of parts, takes the place of the text.
  nlohmann::ordered_json more = {};
};

/// What a template writes: messages, the functions that may be called, and variables such as enable_thinking.
struct Chat {
  std::vector<ChatMessage> messages;
  nlohmann::ordered_json tools = {};
  nlohmann::ordered_json variables = {};
};

/// A part of the text of a conversation.
struct ChatPart {
  std::string text;
  bool is_answer = false;  // words of the assistant and what ends them, which a model learns to write
};

/// The texts of a tokenizer's first and last token.
struct ChatMarks {
  std::string bos, eos;
};

/// Empty where the tokenizer has none or hides them.
ChatMarks marks_of(const Tokenizer& tokenizer);

class ChatTemplate {
 public:
  /// A template's name, the path of a file with Jinja, or Jinja itself. UserError(config) with the list of
  /// names; UserError(data): not valid Jinja.
  static ChatTemplate find(std::string_view name);
  /// `name`: where it is from. `tokens`: bos_token, eos_token, ... as tokenizer_config.json has them.
  static ChatTemplate of_jinja(std::string_view jinja, std::string name, nlohmann::ordered_json tokens = {});
  static std::vector<std::string> names();

  const std::string& name() const { return name_; }
  /// Tells templates apart that write other texts.
  std::string fingerprint() const;
  /// The token that fills up rows of conversations; empty: the tokenizer's.
  const std::string& pad() const { return pad_; }
  /// With the tokenizer's marks in place of the template's usual ones, unless they are empty or came with the
  /// template.
  ChatTemplate with_marks(const ChatMarks& marks) const;
  /// The text of the conversation, and with `asks` the beginning of the answer to it. UserError(data): what
  /// the template refuses.
  std::string text(const Chat& chat, bool asks) const;
  /// The conversation as texts to learn from, each in parts. Answers are what {% generation %} marks, or else
  /// what follows the text that asks for them. Where a template rewrites earlier turns, as those that leave
  /// out old thoughts do, every answer becomes a text with what came before it as the model will see it.
  std::vector<std::vector<ChatPart>> examples(const Chat& chat) const;
  /// The ids of a conversation that asks for an answer; begin with one BOS at most.
  std::vector<int32_t> encode(const Chat& chat, const Tokenizer& tokenizer) const;
  /// The tokens that end an answer.
  std::vector<int32_t> end_tokens(const Tokenizer& tokenizer) const;

 private:
  ChatTemplate(std::string_view jinja, std::string name);
  jinja::Rendered render(const Chat& chat, bool asks) const;
  std::string end_of_answer() const;
  std::vector<ChatPart> example(const Chat& chat, size_t answer) const;

  std::string name_, source_, end_, pad_;
  nlohmann::ordered_json tokens_;  // bos_token, eos_token, ...
  bool has_own_tokens_ = false;
  jinja::Template template_;
};

/// The Jinja template of a tokenizer with its tokens: chat_template.jinja or tokenizer_config.json in the
/// folder of the tokenizer's file; nullopt: there is none. UserError(data) for a broken file.
std::optional<ChatTemplate> template_of_tokenizer(const std::filesystem::path& tokenizer);

/// The template that a user chose (as find()), or the tokenizer's (`tokenizer`: its file or folder; may be
/// empty). nullopt: neither is there.
std::optional<ChatTemplate> choose_chat_template(const std::optional<std::string>& name,
                                                 const std::filesystem::path& tokenizer);

}  // namespace teratron
