// The messages of a chat in a request.
#pragma once

#include <vector>

#include "teratron/generate/json/request_fields.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

/// The field "messages": contents are texts or lists of parts of type "text".
std::vector<ChatMessage> read_messages(RequestFields& fields);

}  // namespace teratron
