// Functions that an answer may call: the fields tools, tool_choice and parallel_tool_calls of a chat.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "teratron/generate/grammar/answer_form.h"
#include "teratron/generate/json/request_fields.h"
#include "teratron/serve/api/request_body.h"
#include "teratron/tokenizer/chat/chat_template.h"

namespace teratron {

struct ChatTools {
  struct Function {
    std::string name;
    std::string parameters;  // a JSON Schema
  };
  nlohmann::ordered_json list = {};  // as the template reads them; null: none may be called
  std::vector<Function> functions = {};
  bool must_call = false;
  bool parallel = true;

  bool empty() const { return functions.empty(); }
  std::vector<std::string> names() const;
};

/// With tool_choice "none" there are no functions; with a name only that one can be called.
ChatTools read_tools(RequestFields& fields, const RequestBody& body);

/// How a model writes calls: as its template shows earlier ones.
enum class ToolFormat : uint8_t { hermes, llama3 };
/// Hermes' where the template shows none.
ToolFormat tool_format(const ChatTemplate& chat);

/// Adds calls of the functions to the forms that an answer may have.
void allow_calls(const ChatTools& tools, ToolFormat format, AnswerForm& form);

}  // namespace teratron
