// Conversations as text: the chat templates of Hugging Face tokenizers that are known by name.
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
// The texts equal the results of transformers' apply_chat_template(). One implementation for the server and
// for finetuning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
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
  /// UserError(config) with the list of names.
  static ChatTemplate find(std::string_view name);
  /// The template whose Jinja text this is, whatever its white space.
  static std::optional<ChatTemplate> of_jinja(std::string_view jinja);
  static std::vector<std::string> names();

  const std::string& name() const;
  /// The token that fills up rows of conversations; empty: the tokenizer's.
  const std::string& pad() const;
  /// With the tokenizer's marks in place of the template's usual ones, unless they are empty.
  ChatTemplate with_marks(const ChatMarks& marks) const;
  /// The conversation, and with `asks` the beginning of the answer to it. UserError(data): a role that the
  /// template does not have, or roles in the wrong order.
  std::vector<ChatPart> parts(const std::vector<ChatMessage>& messages, bool asks) const;
  std::string text(const std::vector<ChatMessage>& messages, bool asks) const;
  /// The ids of a conversation that asks for an answer; begin with one BOS at most.
  std::vector<int32_t> encode(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer) const;
  /// Texts that end an answer and are one token of the vocabulary.
  std::vector<int32_t> end_tokens(const Tokenizer& tokenizer) const;

 private:
  struct Format;
  static const std::vector<Format>& formats();
  explicit ChatTemplate(const Format& format);

  const Format* format_;
  ChatMarks marks_;
};

/// The Jinja template of a tokenizer: tokenizer_config.json or chat_template.jinja in the folder of the
/// tokenizer's file; nullopt: there is none. UserError(data) for a broken file.
std::optional<std::string> jinja_of_tokenizer(const std::filesystem::path& tokenizer);

/// The template that a user chose, or the tokenizer's (`tokenizer`: its file or folder; may be empty).
/// nullopt: neither is there. UserError(config): the tokenizer has one that is not known.
std::optional<ChatTemplate> choose_chat_template(const std::optional<std::string>& name,
                                                 const std::filesystem::path& tokenizer);

}  // namespace teratron
