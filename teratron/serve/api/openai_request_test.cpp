#include "teratron/serve/api/openai_request.h"

#include <chrono>

#include <gtest/gtest.h>

#include "teratron/serve/api/api_error.h"
#include "teratron/serve/api/chat_messages.h"
#include "teratron/serve/api/megatron_request.h"
#include "teratron/serve/api/response_format.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {
namespace {

using nlohmann::json;

struct Served {
  std::unique_ptr<Tokenizer> tokenizer = build_tokenizer({.type = "NullTokenizer", .vocab_size = 100});
  ServedModel model{
      .tokenizer = *tokenizer, .name = "m", .limits = {.vocabulary = 100, .max_positions = 200}};
  // NullTokenizer reads numbers.
  ChatTemplate chat = ChatTemplate::find("identity");

  OpenAiRequest completion(json fields) const {
    fields.emplace("prompt", json::array({1, 2}));
    return parse_completion(std::move(fields), model);
  }
  /// What is wrong with the fields of a chat; its text is never encoded.
  std::string chat_error(json fields) const {
    fields.emplace("messages", json::array({{{"role", 5}, {"content", "1"}}}));
    try {
      parse_chat(std::move(fields), model, chat);
    } catch (const ApiError& error) {
      return error.what();
    }
    return "";
  }
  std::string completion_error(const json& fields) const {
    try {
      completion(fields);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      return error.what();
    }
    return "";
  }
};

// The defaults of vLLM's protocol and of OpenAI's reference.
const json& neutral_fields() {
  static const json fields = json::parse(R"({
      "temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1.0, "length_penalty": 1.0,
      "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "n": 1, "stop": [], "stream": false,
      "stream_options": {"include_usage": false, "include_obfuscation": false}, "seed": -1, "user": "u",
      "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "safety_identifier": "s",
      "prompt_cache_key": "k", "prompt_cache_retention": "24h", "ignore_eos": false, "min_tokens": 0,
      "skip_special_tokens": true, "spaces_between_special_tokens": true, "stop_token_ids": [],
      "include_stop_str_in_output": false, "bad_words": [], "use_beam_search": false, "priority": 0,
      "response_format": {"type": "text"}, "request_id": "r", "return_token_ids": false})");
  return fields;
}

TEST(OpenAiRequest, TakesValuesThatChangeNothing) {
  const Served served;
  EXPECT_EQ(served.completion_error(neutral_fields()), "");
  for (const auto& [name, value] : neutral_fields().items())
    EXPECT_EQ(served.completion_error({{name, value}}), "") << name;
  json chat = neutral_fields();
  chat.update(json::parse(R"({
      "tools": [], "tool_choice": "none", "functions": [], "function_call": "none", "parallel_tool_calls": true,
      "modalities": ["text"], "reasoning_effort": "none", "verbosity": "medium", "logprobs": false, "top_logprobs": 0,
      "echo": false, "add_generation_prompt": true, "continue_final_message": false, "add_special_tokens": false,
      "documents": [], "chat_template_kwargs": {}})"));
  const std::string only = served.chat_error(json::object());
  EXPECT_NE(only.find("messages[0].role"), std::string::npos);
  EXPECT_EQ(served.chat_error(chat), only);
}

TEST(OpenAiRequest, NullIsAsIfTheFieldWereAbsent) {
  const Served served;
  json fields = {{"no_such_field", nullptr}};
  for (const auto& [name, unused] : neutral_fields().items()) fields[name] = nullptr;
  for (const char* name :
       {"max_tokens", "logprobs", "echo", "best_of", "suffix", "model", "tools", "audio", "prediction",
        "reasoning_effort", "modalities", "guided_json", "truncate_prompt_tokens"})
    fields[name] = nullptr;
  EXPECT_EQ(served.completion_error(fields), "");
  const OpenAiRequest with = served.completion(fields), without = served.completion(json::object());
  EXPECT_EQ(with.prompts[0].max_new_tokens, without.prompts[0].max_new_tokens);
  EXPECT_TRUE(with.prompts[0].skip_special_tokens);
  fields["top_logprobs"] = nullptr;
  EXPECT_EQ(served.chat_error(fields), served.chat_error(json::object()));
  const auto body = json::parse(
      R"({"prompts": ["1"], "logprobs": null, "top_p": null, "random_seed": null, "beam_width": null,
      "stop_token": null, "tokens_to_generate": null, "add_BOS": null, "max_len": null, "unknown": null})");
  EXPECT_EQ(parse_megatron(body, served.model).prompts.at(0).max_new_tokens, 64);
}

TEST(OpenAiRequest, RefusesWhatIsNotSupported) {
  const Served served;
  for (const char* text :
       {R"({"logit_bias": {"x": 1}})",
        R"({"logit_bias": {"5": 101}})",
        R"({"logit_bias": {"100": 1}})",
        R"({"response_format": {"type": "xml"}})",
        R"({"response_format": {"type": "json_schema"}})",
        R"({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}})",
        R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}})",
        R"({"service_tier": "flex"})",
        R"({"min_tokens": 3})",
        R"({"use_beam_search": true})",
        R"({"best_of": 2})",
        R"({"suffix": "x"})",
        R"({"bad_words": ["x"]})",
        R"({"prompt_logprobs": 1})",
        R"({"guided_json": {}})",
        R"({"top_k": -2})",
        R"({"stream_options": {"continuous_usage_stats": true}})",
        R"({"stream_options": {"inclde_usage": true}})",
        R"({"user": 5})",
        R"({"metadata": "x"})",
        R"({"ignore_eos": 1})",
        R"({"skip_special_tokens": "no"})",
        R"({"stop_token_ids": ["x"]})",
        R"({"stream_options": {"include_usage": 1}})",
        R"({"modalities": ["text"]})"}) {
    const json fields = json::parse(text);
    EXPECT_NE(served.completion_error(fields).find(fields.begin().key()), std::string::npos)
        << text << ": " << served.completion_error(fields);
  }
  for (const char* text : {R"({"reasoning_effort": "low"})", R"({"modalities": ["text", "audio"]})",
                           R"({"tools": [{}]})", R"({"tools": {}})",
                           R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]})",
                           R"({"tool_choice": "some"})", R"({"tool_choice": {"type": "function"}})",
                           R"({"tool_choice": {"type": "function", "function": {"name": "f"}}})",
                           R"({"parallel_tool_calls": 1})", R"({"functions": [{}]})", R"({"audio": {}})",
                           R"({"tool_choice": "required"})", R"({"verbosity": "high"})",
                           R"({"top_logprobs": 1})", R"({"chat_template_kwargs": 5})"}) {
    const json fields = json::parse(text);
    EXPECT_NE(served.chat_error(fields).find(fields.begin().key()), std::string::npos) << text;
  }
}

TEST(OpenAiRequest, ReadsSamplingAndPassesItToOtherRanks) {
  Served served;
  served.model.sampling = {.temperature = 0.7, .top_k = 20, .joins_filters = true, .repetition_penalty = 1.1};
  const OpenAiRequest request = served.completion({{"top_p", 0.8},
                                                   {"min_p", 0.1},
                                                   {"presence_penalty", 0.5},
                                                   {"frequency_penalty", -1},
                                                   {"logit_bias", {{"5", -3.5}}}});
  const GenerationRequest passed = deserialize_request(serialize(request.prompts[0]));
  for (const SamplingOptions& sampling : {request.prompts[0].sampling, passed.sampling}) {
    EXPECT_EQ(sampling.temperature, 0.7) << "the model's default";
    EXPECT_EQ(sampling.top_k, 20);
    EXPECT_EQ(sampling.top_p, 0.8);
    EXPECT_EQ(sampling.min_p, 0.1);
    EXPECT_EQ(sampling.presence_penalty, 0.5);
    EXPECT_EQ(sampling.frequency_penalty, -1.0);
    EXPECT_EQ(sampling.repetition_penalty, 1.1);
    EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<int32_t, double>>{{5, -3.5}}));
    EXPECT_TRUE(sampling_problems(sampling).empty());
  }
}

TEST(OpenAiRequest, ReadsFieldsOfVllm) {
  const Served served;
  const OpenAiRequest request =
      served.completion({{"skip_special_tokens", false}, {"stop_token_ids", {7, 8}}});
  EXPECT_FALSE(request.prompts[0].skip_special_tokens);
  EXPECT_EQ(request.prompts[0].stop.tokens, (std::vector<int32_t>{7, 8}));
  EXPECT_NE(served.completion({{"seed", -1}}).prompts[0].sampling.seed,
            served.completion({{"seed", -1}}).prompts[0].sampling.seed);
}

TEST(OpenAiRequest, ReportsTenProblemsAtMost) {
  const Served served;
  json messages = json::array(), unknown = json::object();
  for (int i = 0; i < 300'000; ++i) {
    messages.push_back(1);
    unknown[fmt::format("field{}", i)] = 1;
  }
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& error :
       {served.chat_error({{"messages", messages}}), served.chat_error(unknown),
        served.completion_error(unknown), served.chat_error({{"messages", json::array({unknown})}})}) {
    EXPECT_FALSE(error.empty());
    EXPECT_LT(error.size(), 2000U);
    EXPECT_LE(std::count(error.begin(), error.end(), ';'), 9) << error;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(OpenAiRequest, AnAnswerCanBeSentBack) {
  const Served served;
  const auto error = [&](const char* answer) {
    return served.chat_error(
        {{"messages", json::array({json::parse(answer), {{"role", 5}, {"content", "1"}}})}});
  };
  for (
      const char* answer :
      {R"({"role": "assistant", "content": "1", "refusal": null, "annotations": [], "audio": null, "function_call": null,
                                 "tool_calls": [], "reasoning_content": "", "name": "n"})",
       R"({"role": "assistant", "content": null})", R"({"role": "assistant"})"})
    EXPECT_EQ(error(answer).find("messages[0]"), std::string::npos) << error(answer);
  for (const char* answer :
       {R"({"role": "user", "content": null})", R"({"role": "user"})", R"({"role": null, "content": "1"})",
        R"({"role": "assistant", "content": 5})",
        R"({"role": "assistant", "content": "1", "tool_calls": [1]})",
        R"({"role": "assistant", "tool_calls": {}, "content": 5})",
        R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]})",
        R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]})",
        R"({"role": "user", "content": [{"type": "text", "text": null}]})"})
    EXPECT_NE(error(answer).find("messages[0]"), std::string::npos) << answer;
}

constexpr const char* one_tool =
    R"([{"type": "function", "function": {"name": "f", "description": "d", "strict": true,
    "parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}}},
    {"type": "function", "function": {"name": "g"}}])";

TEST(OpenAiRequest, ToolsReachTheTemplateAndTheForm) {
  const RequestBody body(std::string(R"({"tools": )") + one_tool + R"(, "tool_choice": "required"})");
  RequestFields fields(body.fields(), "");
  const ChatTools tools = read_tools(fields, body);
  fields.finish();
  EXPECT_EQ(tools.names(), (std::vector<std::string>{"f", "g"}));
  EXPECT_TRUE(tools.must_call);
  EXPECT_EQ(tools.list[0]["function"]["parameters"]["properties"].dump(),
            R"({"b":{"type":"integer"},"a":{}})")
      << "in their order";
  AnswerForm hermes, llama;
  allow_calls(tools, ToolFormat::hermes, hermes);
  allow_calls(tools, ToolFormat::llama3, llama);
  EXPECT_EQ(hermes.some_of.size(), 2U);
  EXPECT_EQ(hermes.some_of[0].before, "<tool_call>\n{\"name\": \"f\", \"arguments\": ");
  EXPECT_EQ(hermes.between, "\n");
  EXPECT_EQ(llama.some_of[1].before, "{\"name\": \"g\", \"parameters\": ");
  EXPECT_EQ(llama.between, "");
  for (const AnswerForm& form : {hermes, llama}) check_form(form);
}

TEST(OpenAiRequest, ToolChoiceSelectsFunctions) {
  const auto read = [](const std::string& choice) {
    const RequestBody body(std::string(R"({"tools": )") + one_tool + R"(, "tool_choice": )" + choice + "}");
    RequestFields fields(body.fields(), "");
    const ChatTools tools = read_tools(fields, body);
    fields.finish();
    return tools;
  };
  EXPECT_TRUE(read("\"none\"").empty());
  EXPECT_TRUE(read("\"none\"").list.is_null());
  EXPECT_FALSE(read("\"auto\"").must_call);
  const ChatTools named = read(R"({"type": "function", "function": {"name": "g"}})");
  EXPECT_EQ(named.names(), (std::vector<std::string>{"g"}));
  EXPECT_EQ(named.list.size(), 2U) << "the template shows all";
  EXPECT_TRUE(named.must_call && !named.parallel);
  EXPECT_THROW(read(R"({"type": "function", "function": {"name": "h"}})"), UserError);
}

TEST(OpenAiRequest, TheFormOfCallsIsThatOfTheTemplate) {
  const auto jinja = [](const char* call) {
    return ChatTemplate::of_jinja(std::string("{% for m in messages %}{% for c in m.tool_calls or [] %}") +
                                      call + "{% endfor %}{% endfor %}",
                                  "t");
  };
  EXPECT_EQ(tool_format(jinja("<tool_call>{{ c.function | tojson }}</tool_call>")), ToolFormat::hermes);
  EXPECT_EQ(
      tool_format(jinja(
          "{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}}")),
      ToolFormat::llama3);
  EXPECT_EQ(tool_format(jinja("{{ raise_exception('no') }}")), ToolFormat::hermes);
}

TEST(OpenAiRequest, MessagesCarryCallsAndResults) {
  const json body = json::parse(R"({"messages": [
      {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "index": 0,
       "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "5"}]}]})");
  RequestFields fields(body, "");
  const Chat chat = read_conversation(fields, {});
  fields.finish();
  ASSERT_EQ(chat.messages.size(), 2U);
  EXPECT_EQ(chat.messages[0].more["tool_calls"][0]["function"]["arguments"].dump(), R"({"b":1,"a":[2]})");
  EXPECT_TRUE(chat.messages[0].more["content"].is_null());
  EXPECT_EQ(chat.messages[1].more["tool_call_id"], "c1");
  EXPECT_EQ(chat.messages[1].content, "5");
}

TEST(OpenAiRequest, TemplatesWithoutAPlaceForTools) {
  const Chat chat{.messages = {{"user", "1"}}, .tools = json::parse(one_tool)};
  EXPECT_THROW(check_template_writes_tools(chat, ChatTemplate::find("chatml")), UserError);
  check_template_writes_tools(chat, ChatTemplate::of_jinja("{{ tools | tojson }}", "t"));
}

TEST(OpenAiRequest, FormsReachOtherRanks) {
  const Served served;
  const OpenAiRequest request = served.completion(json::parse(
      R"({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "integer"}}}})"));
  ASSERT_EQ(request.prompts[0].form.one_of.size(), 1U);
  EXPECT_EQ(request.prompts[0].form.one_of[0].schema, R"({"type":"integer"})");
  EXPECT_EQ(deserialize_request(serialize(request.prompts[0])).form.one_of[0].schema,
            R"({"type":"integer"})");
  EXPECT_EQ(served.completion({{"response_format", {{"type", "json_object"}}}}).prompts[0].form.one_of.size(),
            1U);
}

}  // namespace
}  // namespace teratron
