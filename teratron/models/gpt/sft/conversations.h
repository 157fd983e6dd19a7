// Conversations from JSON lines, for supervised finetuning. A line has one of these forms:
//
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//   {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}     ShareGPT
//   {"prompt": "...", "completion": "..."}          texts, or lists of messages
//   {"instruction": "...", "input": "...", "output": "..."}                                     Alpaca
//   {"text": "..."}                                 learned whole
//
// Roles are system, user, assistant and tool; ShareGPT's names are translated. A content is a text or a list
// of {"type": "text", "text": "..."}. Other members of messages (tool_calls, reasoning_content) and "tools"
// of the line are given to the chat template. As in Megatron-LM, a system message begins a new conversation,
// so a line may hold several.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

struct Conversation {
  Chat chat = {};
  std::string text = {};   // learned whole, without a template, if the line has no messages
  std::string where = {};  // "chats.jsonl:12"
};

/// The conversations of one line. What is wrong with it is added to `problems`: broken JSON, a missing field,
/// an unknown role, no message, no answer or an empty one, an answer to no question. The result is then
/// empty.
std::vector<Conversation> parse_conversations(std::string_view line, const std::string& where,
                                              std::vector<Problem>& problems);

}  // namespace teratron
