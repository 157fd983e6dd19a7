// `teratron chat`: a conversation with a model, in a terminal or by lines of standard input.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "teratron/cli/generate/generate_job.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

/// Where the user's messages come from and the answers go.
struct ChatTerminal {
  std::function<std::optional<std::string>()> read;  // nullopt: the end
  std::function<void(const std::string& text)> write;
  std::function<bool()> interrupted = [] { return false; };  // whether the answer shall end
};

/// Talks until the input ends. "/new" begins another conversation. `system`: its first message; may be empty.
/// An answer has at most --max-new-tokens tokens, else what is left of the model's positions.
void run_chat_session(const GenerateJob& job, const ChatTemplate& chat, const std::string& system,
                      RankedEngine& engine, const ChatTerminal& terminal);

}  // namespace teratron
