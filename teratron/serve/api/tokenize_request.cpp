#include "teratron/serve/api/tokenize_request.h"

#include <algorithm>

#include "teratron/generate/json/request_fields.h"
#include "teratron/serve/api/api_error.h"
#include "teratron/serve/api/chat_messages.h"

namespace teratron {

namespace {

using nlohmann::json;

// The text to tokenize: a prompt, or what the template makes of messages.
std::string text_of(RequestFields& fields, const RequestBody& body, const ChatTemplate* chat) {
  if (!fields.has("messages")) {
    std::optional<std::string> prompt;
    fields.text("prompt", [&](const std::string& text) { prompt = text; });
    if (!prompt) fields.problem("prompt", "there is neither prompt nor messages", "Add one of them");
    return prompt.value_or("");
  }
  if (chat == nullptr) {
    fields.problem("messages", "the model has no chat template", "Send a prompt");
    return "";
  }
  bool asks = true;
  fields.flag("add_generation_prompt", asks);
  const Chat conversation = read_conversation(fields, read_tools(fields, body));
  fields.finish();
  check_template_writes_tools(conversation, *chat);
  return chat->text(conversation, asks);
}

}  // namespace

nlohmann::ordered_json tokenize_answer(const RequestBody& body, const ServedModel& model,
                                       const ChatTemplate* chat) {
  try {
    RequestFields fields(body.fields(), "");
    fields.ignore_text("model");
    fields.ignore_flag("add_special_tokens");
    const std::string text = text_of(fields, body, chat);
    fields.finish();
    std::vector<int32_t> ids;
    model.tokenizer.encode(text, ids);
    return {{"count", ids.size()}, {"max_model_len", model.limits.max_positions}, {"tokens", ids}};
  } catch (const UserError& error) {
    throw api_error(error);
  }
}

nlohmann::ordered_json detokenize_answer(const RequestBody& body, const ServedModel& model) {
  try {
    RequestFields fields(body.fields(), "");
    fields.ignore_text("model");
    if (!fields.has("tokens")) fields.problem("tokens", "there are no tokens", "Add a list of token ids");
    std::vector<int32_t> ids;
    fields.read<std::vector<int32_t>>("tokens", "a list of token ids", RequestFields::are_ids,
                                      [&](const std::vector<int32_t>& given) { ids = given; });
    const auto unknown =
        std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= model.limits.vocabulary; });
    if (unknown != ids.end())
      fields.problem("tokens", fmt::format("there is no token {}", *unknown), "Use ids of the vocabulary");
    fields.finish();
    return {{"prompt", model.tokenizer.decode(ids)}};
  } catch (const UserError& error) {
    throw api_error(error);
  }
}

}  // namespace teratron
