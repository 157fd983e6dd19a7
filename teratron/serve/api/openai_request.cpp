#include "teratron/serve/api/openai_request.h"

#include <algorithm>

#include "teratron/generate/json/request_fields.h"
#include "teratron/serve/api/api_error.h"
#include "teratron/serve/api/chat_messages.h"
#include "teratron/serve/api/openai_sampling.h"
#include "teratron/serve/api/prompts.h"
#include "teratron/serve/api/response_format.h"

namespace teratron {

namespace {

using nlohmann::json;

constexpr size_t most_stops = 16;

void read_openai_stops(RequestFields& fields, const ServedModel& model, OpenAiRequest& all,
                       GenerationRequest& request) {
  fields.flag("ignore_eos", all.ignore_eos);
  if (all.ignore_eos) {
    request.stop.tokens.clear();
  } else {
    request.stop.tokens = model.end_tokens;
  }
  fields.read<std::vector<int32_t>>(
      "stop_token_ids", "a list of token ids", RequestFields::are_ids, [&](const std::vector<int32_t>& ids) {
        request.stop.tokens.insert(request.stop.tokens.end(), ids.begin(), ids.end());
      });
  fields.texts("stop", request.stop.texts);
  const std::vector<std::string>& stops = request.stop.texts;
  if (stops.size() > most_stops)
    fields.problem("stop", fmt::format("{} texts end an answer", stops.size()), "Use at most 16");
  if (std::find(stops.begin(), stops.end(), "") != stops.end())
    fields.problem("stop", "an empty text ends every answer", "Leave it out");
}

void read_stream(RequestFields& fields, OpenAiRequest& all) {
  fields.flag("stream", all.stream);
  fields.read<json>(
      "stream_options", "an object", [](const json& v) { return v.is_object(); },
      [&](const json& v) {
        RequestFields options(v, "stream_options");
        options.flag("include_usage", all.include_usage);
        options.ignore_flag("include_obfuscation");
        options.unsupported("continuous_usage_stats", {false}, "Leave it out");
        fields.add_problems_of(std::move(options));
      });
}

struct Unsupported {
  const char* field;
  std::vector<json> neutral = {};  // values that change nothing
};

void refuse(RequestFields& fields, const std::vector<Unsupported>& list) {
  for (const Unsupported& each : list) fields.unsupported(each.field, each.neutral, "Leave it out");
}

// OpenAI's and vLLM's.
void refuse_unsupported(RequestFields& fields) {
  const json no_list = json::array();
  refuse(fields, {{"service_tier", {"auto", "default"}},
                  {"length_penalty", {1}},
                  {"min_tokens", {0}},
                  {"use_beam_search", {false}},
                  {"include_stop_str_in_output", {false}},
                  {"spaces_between_special_tokens", {true}},
                  {"bad_words", {no_list}},
                  {"allowed_token_ids"},
                  {"prompt_logprobs"},
                  {"truncate_prompt_tokens"},
                  {"structured_outputs"},
                  {"guided_json"},
                  {"guided_regex"},
                  {"guided_choice"},
                  {"guided_grammar"},
                  {"logits_processors", {no_list}},
                  {"priority", {0}},
                  {"return_token_ids", {false}},
                  {"return_tokens_as_token_ids", {false}}});
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                           "request_id", "cache_salt"})
    fields.ignore_text(name);
  fields.ignore_object("metadata");
  fields.ignore_flag("store");
}

// What completions and chats have in common. Returns whether a seed is named.
bool read_common(RequestFields& fields, const ServedModel& model, OpenAiRequest& all,
                 GenerationRequest& request) {
  all.model = model.name;
  fields.text("model", [&](const std::string& name) {
    request.adapter = adapter_named(name, model);
    all.model = name;
  });
  const bool has_seed = read_openai_sampling(fields, model, request);
  read_openai_stops(fields, model, all, request);
  fields.flag("skip_special_tokens", request.skip_special_tokens);
  fields.integer("n", [&](int64_t v) { request.choices = v; });
  read_stream(fields, all);
  refuse_unsupported(fields);
  return has_seed;
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

OpenAiRequest parse_completion(const RequestBody& body, const ServedModel& model) {
  OpenAiRequest all;
  GenerationRequest common{.max_new_tokens = 16};
  bool echo = false;
  try {
    RequestFields fields(body.fields(), "");
    const bool has_seed = read_common(fields, model, all, common);
    fields.integer("max_tokens", [&](int64_t v) { common.max_new_tokens = v; });
    fields.flag("echo", echo);
    read_completion_logprobs(fields, echo, all, common);
    fields.unsupported("best_of", {1, common.choices}, "Use n");
    refuse(fields, {{"suffix", {""}}, {"add_special_tokens", {true}}, {"prompt_embeds"}});
    read_response_format(fields, body, common.form);
    const std::vector<const json*> prompts = read_prompts(fields, "prompt", model);
    fields.finish();
    check_form(common.form);
    for (const json* each : prompts) {
      all.prompts.push_back(common);
      std::vector<int32_t>& ids = all.prompts.back().prompt;
      ids = prompt_ids(*each, model);
      if (echo)
        all.echoes.push_back(each->is_string() ? each->get<std::string>() : model.tokenizer.decode(ids));
      if (!has_seed) common.sequence += static_cast<uint64_t>(std::max<int64_t>(common.choices, 1));
    }
  } catch (const UserError& error) {
    throw api_error(error);
  }
  check_lengths(all, model);
  return all;
}

namespace {

void read_chat_logprobs(RequestFields& fields, OpenAiRequest& all, GenerationRequest& request) {
  fields.flag("logprobs", all.logprobs);
  fields.integer("top_logprobs", [&](int64_t v) { request.top_logprobs = v; });
  request.logprobs = all.logprobs;
  if (request.top_logprobs > 0 && !all.logprobs)
    fields.problem("top_logprobs", "top_logprobs is set without logprobs", "Set logprobs to true");
}

void refuse_chat_fields(RequestFields& fields) {
  const json no_list = json::array(), only_text = json::array({"text"});
  refuse(fields, {{"functions", {no_list}},
                  {"function_call", {"none", "auto"}},
                  {"modalities", {only_text}},
                  {"audio"},
                  {"prediction"},
                  {"web_search_options"},
                  {"reasoning_effort", {"none"}},
                  {"verbosity", {"medium"}},
                  {"echo", {false}},
                  {"add_generation_prompt", {true}},
                  {"continue_final_message", {false}},
                  {"add_special_tokens", {false}},
                  {"documents", {no_list}},
                  {"chat_template"},
                  {"mm_processor_kwargs", {json::object()}}});
  fields.ignore_flag("include_reasoning");
}

// Some tokenizers call the mark of a call special, and it would be missing in texts.
bool hides_calls(const Tokenizer& tokenizer) {
  const std::string mark = "<tool_call>";
  std::vector<int32_t> ids;
  tokenizer.encode(mark, ids);
  return std::ranges::any_of(
      ids, [&](int32_t id) { return tokenizer.is_special(id) && tokenizer.decode({&id, 1}) == mark; });
}

// Calls are read from the answer; those that must be are the only form that it can have. An answer in JSON
// may be a call instead.
void use_tools(const ChatTools& tools, const ChatTemplate& chat, OpenAiRequest& all,
               GenerationRequest& request) {
  if (tools.empty()) return;
  all.calls = {.functions = tools.names(), .parallel = tools.parallel};
  if (tools.must_call) request.form = {};
  if (tools.must_call || !request.form.empty()) allow_calls(tools, tool_format(chat), request.form);
}

// What the template refuses concerns the messages.
std::vector<int32_t> encoded(const Chat& conversation, const Tokenizer& tokenizer, const ChatTemplate& chat) {
  try {
    return chat.encode(conversation, tokenizer);
  } catch (const UserError& error) {
    throw ApiError(400, to_string(error.problems().front()), {.param = "messages"});
  }
}

}  // namespace

OpenAiRequest parse_chat(const RequestBody& body, const ServedModel& model, const ChatTemplate& chat) {
  OpenAiRequest all{.is_chat = true};
  GenerationRequest common{.max_new_tokens = -1};
  try {
    RequestFields fields(body.fields(), "");
    read_common(fields, model, all, common);
    for (const char* name : {"max_tokens", "max_completion_tokens"}) {
      fields.integer(name, [&](int64_t v) {
        common.max_new_tokens = v;
        if (v < 1) fields.problem(name, fmt::format("{} = {} is below 1", name, v), "Use 1 or more");
      });
    }
    read_chat_logprobs(fields, all, common);
    refuse_chat_fields(fields);
    read_response_format(fields, body, common.form);
    const ChatTools tools = read_tools(fields, body);
    const Chat conversation = read_conversation(fields, tools);
    fields.finish();
    use_tools(tools, chat, all, common);
    if (!tools.empty() && hides_calls(model.tokenizer)) common.skip_special_tokens = false;
    check_form(common.form);
    check_template_writes_tools(conversation, chat);
    common.prompt = encoded(conversation, model.tokenizer, chat);
  } catch (const UserError& error) {
    throw api_error(error);
  }
  if (!all.ignore_eos) {
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
