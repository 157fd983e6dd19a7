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

// The beginning of a call.
Json call_json(const AnswerPiece& piece) {
  return {{"id", fmt::format("call_{:016x}", random_seed())},
          {"type", "function"},
          {"function", {{"name", piece.name}, {"arguments", piece.arguments}}}};
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
          {"model", request_.model}};
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

// The text of an answer, or the calls that are in it.
Json OpenAiAnswer::message(const std::string& text, std::string& finish_reason) const {
  Json value = {{"role", "assistant"}, {"content", text}};
  if (!request_.calls) return value;
  ToolCallStream stream(*request_.calls);
  std::string content;
  Json calls = Json::array();
  const auto take = [&](const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& piece : pieces) {
      content += piece.content;
      if (piece.call < 0) continue;
      if (!piece.name.empty()) calls.push_back(call_json(piece));
      if (!piece.name.empty()) continue;
      std::string& arguments = calls.back()["function"]["arguments"].get_ref<std::string&>();
      arguments += piece.arguments;
    }
  };
  take(stream.add(text));
  take(stream.finish());
  if (calls.empty()) return value;
  value["content"] = content.empty() ? Json() : Json(content);
  value["tool_calls"] = std::move(calls);
  if (finish_reason == "stop") finish_reason = "tool_calls";
  return value;
}

Json OpenAiAnswer::choice_json(size_t prompt, int64_t index, const GeneratedChoice& choice) const {
  std::string text = answer_text(model_.tokenizer, request_.prompts[prompt], choice);
  if (!request_.echoes.empty()) text = request_.echoes[prompt] + text;
  Json value = {{"index", index}};
  std::string finish_reason = choice.finish_reason;
  if (request_.is_chat) {
    value["message"] = message(text, finish_reason);
  } else {
    value["text"] = text;
  }
  value["logprobs"] = logprobs_json(prompt, choice);
  value["finish_reason"] = finish_reason;
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

// `change`: of the text, or of a chat's message.
std::string OpenAiAnswer::event(int64_t index, const Json& change, const std::string& finish_reason,
                                Stream* stream) const {
  Json choice = {{"index", index}};
  choice[request_.is_chat ? "delta" : "text"] = change;
  const bool has_logprobs = request_.logprobs && stream && !stream->logprobs.empty();
  choice["logprobs"] = has_logprobs ? stream->logprobs.take() : Json();
  choice["finish_reason"] = finish_reason.empty() ? Json() : Json(finish_reason);
  Json chunk = head(true);
  chunk["choices"] = Json::array();
  chunk["choices"].push_back(std::move(choice));
  return sent(dump_line(chunk));
}

// What more of the text changes; none: nothing yet.
std::vector<Json> OpenAiAnswer::changes(Stream& stream, const std::string& text, bool ends) const {
  const auto content = [&](const std::string& more) {
    return request_.is_chat ? Json{{"content", more}} : Json(more);
  };
  std::vector<Json> all;
  if (!stream.calls) {
    if (!text.empty()) all.push_back(content(text));
    return all;
  }
  std::vector<AnswerPiece> pieces = stream.calls->add(text);
  if (ends) {
    for (AnswerPiece& piece : stream.calls->finish()) pieces.push_back(std::move(piece));
  }
  for (const AnswerPiece& piece : pieces) {
    if (piece.call < 0) {
      all.push_back(content(piece.content));
      continue;
    }
    Json call = {{"index", piece.call}};
    call.update(piece.name.empty() ? Json{{"function", {{"arguments", piece.arguments}}}} : call_json(piece));
    all.push_back({{"tool_calls", Json::array({call})}});
  }
  return all;
}

std::string OpenAiAnswer::begin() {
  std::string events;
  for (size_t prompt = 0; prompt < request_.prompts.size(); ++prompt) {
    for (int64_t i = 0; i < request_.prompts[prompt].choices; ++i) {
      const auto index = static_cast<int64_t>(streams_.size());
      streams_.push_back(std::make_unique<Stream>(
          Stream{TextStream(model_.tokenizer, request_.prompts[prompt]), new_logprobs(prompt), {}}));
      if (request_.calls) streams_.back()->calls.emplace(*request_.calls);
      if (request_.is_chat) events += event(index, {{"role", "assistant"}, {"content", ""}}, "", nullptr);
      if (!request_.echoes.empty()) events += event(index, request_.echoes[prompt], "", nullptr);
    }
  }
  return events;
}

std::string OpenAiAnswer::add(size_t prompt, int64_t choice, const GeneratedToken& token) {
  const auto index = static_cast<int64_t>(prompt) * request_.prompts[prompt].choices + choice;
  Stream& stream = *streams_.at(index);
  stream.tokens += 1;
  std::string text = stream.text.add(token.id), reason = token.finish_reason;
  if (!reason.empty()) text += stream.text.finish();
  if (request_.logprobs) stream.logprobs.add(token);
  std::vector<Json> all = changes(stream, text, !reason.empty());
  if (all.empty() && reason.empty() && !request_.logprobs) return "";
  if (all.empty()) all.push_back(request_.is_chat ? Json::object() : Json(""));
  if (reason == "stop" && stream.calls && stream.calls->calls() > 0) reason = "tool_calls";
  std::string events;
  for (size_t i = 0; i < all.size(); ++i)
    events += event(index, all[i], i + 1 == all.size() ? reason : "", &stream);
  return events;
}

std::string OpenAiAnswer::end() const {
  std::string events;
  const bool only_scores = request_.prompts.front().max_new_tokens == 0;
  for (size_t i = 0; only_scores && i < streams_.size(); ++i)
    events += event(static_cast<int64_t>(i), Json(""), "length", streams_[i].get());
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
