#include "teratron/serve/api/openai_request.h"

#include <algorithm>

#include "teratron/generate/json/request_fields.h"
#include "teratron/serve/api/api_error.h"

namespace teratron {

namespace {

using nlohmann::json;

constexpr size_t most_stops = 16;

// OpenAI's and vLLM's values for "off" are the engine's zeros.
void read_openai_sampling(RequestFields& fields, GenerationRequest& request) {
  SamplingOptions& sampling = request.sampling;
  sampling.seed = random_seed();
  sampling.top_p = 1.0;
  fields.real("temperature", sampling.temperature);
  fields.integer("top_k", [&](int64_t v) { sampling.top_k = std::max<int64_t>(v, 0); });
  fields.real("top_p", sampling.top_p);
  fields.integer("seed", [&](int64_t v) { sampling.seed = static_cast<uint64_t>(v); });
  if (sampling.top_p <= 0.0 || sampling.top_p > 1.0)
    fields.problem("top_p", fmt::format("top_p = {} is not in (0, 1]", sampling.top_p),
                   "Use 1 for all tokens");
  if (sampling.temperature < 0.0 || sampling.temperature > 100.0) {
    fields.problem("temperature", fmt::format("temperature = {} is not in [0, 100]", sampling.temperature),
                   "Use 1, less for more probable texts");
  }
  if (sampling.top_p == 1.0) sampling.top_p = 0.0;
  if (sampling.temperature == 0.0) {
    sampling.temperature = 1.0;
    sampling.top_k = 1;
  }
  if (sampling.top_k == 1) sampling.top_p = 0.0;  // the most probable token always stays
}

void read_openai_stops(RequestFields& fields, const ServedModel& model, GenerationRequest& request) {
  bool ignore_end = false;
  fields.flag("ignore_eos", ignore_end);
  if (ignore_end) {
    request.stop.tokens.clear();
  } else if (model.document_end >= 0) {
    request.stop.tokens.push_back(model.document_end);
  }
  fields.texts("stop", request.stop.texts);
  const std::vector<std::string>& stops = request.stop.texts;
  if (stops.size() > most_stops)
    fields.problem("stop", fmt::format("{} texts end an answer", stops.size()), "Use at most 16");
  if (std::find(stops.begin(), stops.end(), "") != stops.end())
    fields.problem("stop", "an empty text ends every answer", "Leave it out");
}

// What completions and chats have in common.
void read_common(RequestFields& fields, const ServedModel& model, OpenAiRequest& all,
                 GenerationRequest& request) {
  fields.text("model", [&](const std::string& name) {
    if (name == model.name) return;
    throw ApiError(
        404,
        fmt::format("the model '{}' does not exist; this server has '{}'", printable(name, 80), model.name),
        {.param = "model", .code = "model_not_found"});
  });
  read_openai_sampling(fields, request);
  read_openai_stops(fields, model, request);
  fields.integer("n", [&](int64_t v) { request.choices = v; });
  fields.flag("stream", all.stream);
  fields.read<json>(
      "stream_options", "an object", [](const json& v) { return v.is_object(); },
      [&](const json& v) {
        const auto found = v.find("include_usage");
        all.include_usage = found != v.end() && *found == true;
      });
  const std::string leave = "Leave it out";
  fields.unsupported("presence_penalty", {0}, leave);
  fields.unsupported("frequency_penalty", {0}, leave);
  fields.unsupported("logit_bias", {json::object()}, leave);
  fields.ignore("user");
  fields.ignore("metadata");
  fields.ignore("store");
}

void check_lengths(const OpenAiRequest& all, const ServedModel& model) {
  for (const GenerationRequest& request : all.prompts) {
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t positions = model.limits.max_positions;
    if (prompt <= positions && request.max_new_tokens <= positions - prompt) continue;
    throw ApiError(
        400,
        fmt::format("This model's maximum context length is {} tokens. You requested {} tokens ({} in the "
                    "prompt, {} in the answer). Please reduce the length of the prompt or the answer.",
                    positions,
                    static_cast<uint64_t>(prompt) +
                        static_cast<uint64_t>(std::max<int64_t>(request.max_new_tokens, 0)),
                    prompt, request.max_new_tokens),
        {.param = all.is_chat ? "messages" : "prompt", .code = "context_length_exceeded"});
  }
  const int64_t tokens = total_tokens(all.prompts);
  if (model.max_request_tokens > 0 && tokens > model.max_request_tokens) {
    throw ApiError(
        413,
        fmt::format(
            "The request has {} tokens, prompts and answers together, and at most {} are accepted. Ask "
            "for fewer at once.",
            tokens, model.max_request_tokens),
        {.param = "max_tokens", .code = "too_many_tokens"});
  }
}

// The ids or the text of one prompt.
void add_prompt(const json& value, const ServedModel& model, const GenerationRequest& common,
                OpenAiRequest& all) {
  GenerationRequest& request = all.prompts.emplace_back(common);
  if (value.is_array()) {
    request.prompt = value.get<std::vector<int32_t>>();
    all.echoes.push_back(model.tokenizer.decode(request.prompt));
    return;
  }
  all.echoes.push_back(value.get<std::string>());
  model.tokenizer.encode(all.echoes.back(), request.prompt);
  if (request.prompt.empty() && model.document_end >= 0) request.prompt.push_back(model.document_end);
}

bool is_prompt(const json& value) {
  return value.is_string() || (RequestFields::are_ids(value) && !value.empty());
}

std::vector<json> read_prompts(RequestFields& fields, const ServedModel& model) {
  std::vector<json> prompts;
  fields.read<json>(
      "prompt", "a text, a list of texts, a list of token ids or a list of such lists",
      [](const json& v) {
        return is_prompt(v) ||
               (v.is_array() && !v.empty() && std::all_of(v.begin(), v.end(), is_prompt) &&
                (RequestFields::are_texts(v) || std::all_of(v.begin(), v.end(), RequestFields::are_ids)));
      },
      [&](const json& v) {
        if (is_prompt(v)) return prompts.push_back(v);
        if (v.size() > model.max_prompts) {
          return fields.problem("prompt", fmt::format("{} prompts in one request", v.size()),
                                fmt::format("Send at most {} at once", model.max_prompts));
        }
        prompts.assign(v.begin(), v.end());
      });
  return prompts;
}

void read_completion_logprobs(RequestFields& fields, bool echo, OpenAiRequest& all,
                              GenerationRequest& request) {
  fields.integer("logprobs", [&](int64_t v) {
    all.logprobs = true;
    request.top_logprobs = v;
  });
  request.logprobs = all.logprobs || request.max_new_tokens == 0;
  if (request.max_new_tokens == 0 && !echo)
    fields.problem("max_tokens", "no new tokens are asked for, and not the prompt",
                   "Set echo, or max_tokens");
  if (all.stream && echo && all.logprobs)
    fields.problem("stream", "log probabilities of the prompt (echo) are not streamed",
                   "Set only two of stream, echo, logprobs");
}

}  // namespace

OpenAiRequest parse_completion(const json& body, const ServedModel& model) {
  OpenAiRequest all;
  GenerationRequest common{.max_new_tokens = 16};
  bool echo = false;
  try {
    RequestFields fields(body, "");
    read_common(fields, model, all, common);
    fields.integer("max_tokens", [&](int64_t v) { common.max_new_tokens = v; });
    fields.flag("echo", echo);
    read_completion_logprobs(fields, echo, all, common);
    fields.unsupported("best_of", {1, common.choices}, "Use n");
    fields.unsupported("suffix", {""}, "Leave it out");
    const auto prompt = body.find("prompt");
    if (prompt == body.end() || prompt->is_null())
      fields.problem("prompt", "there is no prompt", "Add a text or a list of token ids");
    const std::vector<json> prompts = read_prompts(fields, model);
    fields.finish();
    for (const json& each : prompts) add_prompt(each, model, common, all);
    if (!echo) all.echoes.clear();
  } catch (const UserError& error) {
    throw api_error(error);
  }
  check_lengths(all, model);
  return all;
}

namespace {

// A text, or parts of type "text".
std::optional<std::string> content_text(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const json& part : content) {
    const bool is_text =
        part.is_object() && part.value("type", json()) == "text" && part.value("text", json()).is_string();
    if (!is_text) return std::nullopt;
    text += part.at("text").get<std::string>();
  }
  return text;
}

ChatMessage read_message(RequestFields& fields, const json& value, size_t index) {
  const std::string where = fmt::format("messages[{}]", index);
  ChatMessage message;
  if (!value.is_object()) {
    fields.problem(where, where + " is not an object", R"(Write {"role": "user", "content": "..."})");
    return message;
  }
  const json role = value.value("role", json()), content = value.value("content", json());
  if (role.is_string())
    message.role = role.get<std::string>();
  else
    fields.problem(where, where + ".role is not a text", "Use system, user or assistant");
  if (const std::optional<std::string> text = content_text(content)) {
    message.content = *text;
  } else {
    fields.problem(where, where + ".content is neither a text nor a list of parts of type text",
                   "Use a text");
  }
  for (const auto& [name, unused] : value.items()) {
    if (name != "role" && name != "content" && !(unused.is_null() || name == "name"))
      fields.problem(where, fmt::format("unknown field '{}' in {}", printable(name, 60), where),
                     "Use role and content");
  }
  return message;
}

std::vector<ChatMessage> read_messages(RequestFields& fields, const json& body) {
  std::vector<ChatMessage> messages;
  fields.read<json>(
      "messages", "a list of messages", [](const json& v) { return v.is_array() && !v.empty(); },
      [&](const json& v) {
        for (size_t i = 0; i < v.size(); ++i) messages.push_back(read_message(fields, v[i], i));
      });
  const auto found = body.find("messages");
  if (found == body.end() || found->is_null())
    fields.problem("messages", "there are no messages", R"(Add [{"role": "user", "content": "..."}])");
  return messages;
}

void read_chat_logprobs(RequestFields& fields, OpenAiRequest& all, GenerationRequest& request) {
  bool top = false;
  fields.flag("logprobs", all.logprobs);
  fields.integer("top_logprobs", [&](int64_t v) { request.top_logprobs = v, top = true; });
  request.logprobs = all.logprobs;
  if (top && !all.logprobs)
    fields.problem("top_logprobs", "top_logprobs is set without logprobs", "Set logprobs to true");
}

void refuse_tools(RequestFields& fields) {
  const std::string leave = "Leave it out";
  fields.unsupported("tools", {json::array()}, leave);
  fields.unsupported("tool_choice", {"none", "auto"}, leave);
  fields.unsupported("response_format", {{{"type", "text"}}}, leave);
  fields.ignore("parallel_tool_calls");
}

}  // namespace

OpenAiRequest parse_chat(const json& body, const ServedModel& model, const ChatTemplate& chat) {
  OpenAiRequest all{.is_chat = true};
  GenerationRequest common{.max_new_tokens = -1};
  try {
    RequestFields fields(body, "");
    read_common(fields, model, all, common);
    for (const char* name : {"max_tokens", "max_completion_tokens"}) {
      fields.integer(name, [&](int64_t v) {
        common.max_new_tokens = v;
        if (v < 1) fields.problem(name, fmt::format("{} = {} is below 1", name, v), "Use 1 or more");
      });
    }
    read_chat_logprobs(fields, all, common);
    refuse_tools(fields);
    const std::vector<ChatMessage> messages = read_messages(fields, body);
    fields.finish();
    common.prompt = chat.encode(messages, model.tokenizer);
  } catch (const UserError& error) {
    throw api_error(error);
  }
  if (!body.value("ignore_eos", false)) {
    for (const int32_t end : chat.end_tokens(model.tokenizer)) common.stop.tokens.push_back(end);
  }
  const auto prompt = static_cast<int64_t>(common.prompt.size());
  if (common.max_new_tokens < 0)
    common.max_new_tokens = std::max<int64_t>(1, model.limits.max_positions - prompt);
  all.prompts.push_back(std::move(common));
  check_lengths(all, model);
  return all;
}

}  // namespace teratron
