#include "teratron/serve/api/openai_answer.h"

#include <chrono>

#include "teratron/generate/json/request_json.h"

namespace teratron {

namespace {

using Json = nlohmann::ordered_json;

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string sent(const std::string& data) {
  return "data: " + data + "\n\n";
}

}  // namespace

OpenAiAnswer::OpenAiAnswer(const OpenAiRequest& request, const ServedModel& model)
    : request_(request),
      model_(model),
      id_(fmt::format("{}-{:016x}", request.is_chat ? "chatcmpl" : "cmpl", random_seed())),
      created_(unix_time()) {}

Json OpenAiAnswer::head(bool chunk) const {
  const std::string chat = chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_},
          {"object", request_.is_chat ? chat : "text_completion"},
          {"created", created_},
          {"model", model_.name}};
}

Json OpenAiAnswer::usage(int64_t completion_tokens) const {
  int64_t prompt_tokens = 0;
  for (const GenerationRequest& prompt : request_.prompts)
    prompt_tokens += static_cast<int64_t>(prompt.prompt.size());
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens}};
}

TokenLogprobs OpenAiAnswer::new_logprobs(size_t prompt) const {
  const bool echoes = !request_.echoes.empty();
  return {model_.tokenizer, request_.is_chat, echoes ? -1 : request_.prompts[prompt].prompt.back()};
}

// The engine's values begin with those of the prompt's second token.
Json OpenAiAnswer::logprobs_json(size_t prompt, const GeneratedChoice& choice) const {
  if (!request_.logprobs) return {};
  const std::vector<int32_t>& ids = request_.prompts[prompt].prompt;
  std::vector<int32_t> all = ids;
  all.insert(all.end(), choice.tokens.begin(), choice.tokens.end());
  TokenLogprobs entries = new_logprobs(prompt);
  const bool echoes = !request_.echoes.empty();
  if (echoes) entries.add_first(all.front());
  for (size_t i = echoes ? 1 : ids.size(); i < all.size(); ++i) {
    GeneratedToken token{.id = all[i], .logprob = choice.logprobs[i - 1], .top = {}, .finish_reason = {}};
    if (!choice.top.empty()) token.top = choice.top[i - 1];
    entries.add(token);
  }
  return entries.take();
}

Json OpenAiAnswer::choice_json(size_t prompt, int64_t index, const GeneratedChoice& choice) const {
  std::string text = answer_text(model_.tokenizer, request_.prompts[prompt], choice);
  if (!request_.echoes.empty()) text = request_.echoes[prompt] + text;
  Json value = {{"index", index}};
  if (request_.is_chat) {
    value["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    value["text"] = text;
  }
  value["logprobs"] = logprobs_json(prompt, choice);
  value["finish_reason"] = choice.finish_reason;
  return value;
}

Json OpenAiAnswer::whole(const std::vector<GenerationResult>& results) const {
  Json answer = head(false);
  answer["choices"] = Json::array();
  int64_t tokens = 0;
  for (size_t prompt = 0; prompt < results.size(); ++prompt) {
    for (const GeneratedChoice& choice : results[prompt].choices) {
      answer["choices"].push_back(
          choice_json(prompt, static_cast<int64_t>(answer["choices"].size()), choice));
      tokens += static_cast<int64_t>(choice.tokens.size());
    }
  }
  answer["usage"] = usage(tokens);
  return answer;
}

std::string OpenAiAnswer::event(int64_t index, const std::string& text, const std::string& finish_reason,
                                Stream* stream) const {
  Json choice = {{"index", index}};
  if (!request_.is_chat) {
    choice["text"] = text;
  } else if (stream) {
    choice["delta"] = Json::object();
    if (!text.empty()) choice["delta"]["content"] = text;
  } else {
    choice["delta"] = {{"role", "assistant"}, {"content", ""}};
  }
  const bool has_logprobs = request_.logprobs && stream && !stream->logprobs.empty();
  choice["logprobs"] = has_logprobs ? stream->logprobs.take() : Json();
  choice["finish_reason"] = finish_reason.empty() ? Json() : Json(finish_reason);
  Json chunk = head(true);
  chunk["choices"] = Json::array();
  chunk["choices"].push_back(std::move(choice));
  return sent(dump_line(chunk));
}

std::string OpenAiAnswer::begin() {
  std::string events;
  for (size_t prompt = 0; prompt < request_.prompts.size(); ++prompt) {
    for (int64_t i = 0; i < request_.prompts[prompt].choices; ++i) {
      const auto index = static_cast<int64_t>(streams_.size());
      streams_.push_back(std::make_unique<Stream>(
          Stream{TextStream(model_.tokenizer, request_.prompts[prompt]), new_logprobs(prompt)}));
      if (request_.is_chat || !request_.echoes.empty())
        events += event(index, request_.is_chat ? "" : request_.echoes[prompt], "", nullptr);
    }
  }
  return events;
}

std::string OpenAiAnswer::add(size_t prompt, int64_t choice, const GeneratedToken& token) {
  const auto index = static_cast<int64_t>(prompt) * request_.prompts[prompt].choices + choice;
  Stream& stream = *streams_.at(index);
  stream.tokens += 1;
  std::string text = stream.text.add(token.id);
  if (!token.finish_reason.empty()) text += stream.text.finish();
  if (request_.logprobs) stream.logprobs.add(token);
  if (text.empty() && token.finish_reason.empty() && !request_.logprobs) return "";
  return event(index, text, token.finish_reason, &stream);
}

std::string OpenAiAnswer::end() const {
  std::string events;
  const bool only_scores = request_.prompts.front().max_new_tokens == 0;
  for (size_t i = 0; only_scores && i < streams_.size(); ++i)
    events += event(static_cast<int64_t>(i), "", "length", streams_[i].get());
  if (request_.include_usage) {
    int64_t tokens = 0;
    for (const auto& stream : streams_) tokens += stream->tokens;
    Json chunk = head(true);
    chunk["choices"] = Json::array();
    chunk["usage"] = usage(tokens);
    events += sent(dump_line(chunk));
  }
  return events + sent("[DONE]");
}

std::string OpenAiAnswer::failed(const Json& error) {
  return sent(dump_line(error));
}

}  // namespace teratron
