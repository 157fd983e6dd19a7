// What a chat template reads of a request.
#pragma once

#include <vector>

#include "teratron/generate/json/request_fields.h"
#include "teratron/serve/api/chat_tools.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

/// The field "messages": contents are texts or lists of parts of type "text". Those of the assistant may have
/// tool_calls, whose arguments, texts of JSON, become objects, as templates want them; those of role "tool"
/// have a tool_call_id.
std::vector<ChatMessage> read_messages(RequestFields& fields);

/// Messages, `tools`, and chat_template_kwargs.
Chat read_conversation(RequestFields& fields, const ChatTools& tools);

/// UserError(data): there are tools, and the template writes nothing of them.
void check_template_writes_tools(const Chat& conversation, const ChatTemplate& chat);

}  // namespace teratron
