#include "teratron/serve/api/token_logprobs.h"

#include <algorithm>
#include <array>

namespace teratron {

namespace {

using Json = nlohmann::ordered_json;

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

int64_t code_points(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); });
}

// Whole characters, as far as lengths tell; what else is wrong the JSON writer replaces.
bool is_complete(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (continues(text[i])) return false;
    const size_t length = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
    for (size_t k = 1; k < length; ++k) {
      if (i + k >= text.size() || !continues(text[i + k])) return false;
    }
    i += length;
  }
  return true;
}

std::string shown(const std::string& bytes) {
  if (is_complete(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

Json byte_list(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

}  // namespace

std::string token_bytes(const Tokenizer& tokenizer, int32_t before, int32_t token) {
  if (before < 0) return tokenizer.decode({&token, 1});
  // Some tokenizers put a blank between two ids.
  const std::array<int32_t, 2> both = {before, token};
  const std::string text = tokenizer.decode(both), first = tokenizer.decode({&before, 1});
  return text.substr(std::min(first.size(), text.size()));
}

void TokenLogprobs::push(Entry entry, int32_t token) {
  before_ = token;
  entries_.push_back(std::move(entry));
}

void TokenLogprobs::add_first(int32_t token) {
  push({.bytes = token_bytes(tokenizer_, before_, token), .has_logprob = false, .top = {}}, token);
}

void TokenLogprobs::add(const GeneratedToken& token) {
  Entry entry{.bytes = token_bytes(tokenizer_, before_, token.id), .logprob = token.logprob, .top = {}};
  for (const TokenLogprob& each : token.top) {
    // A GPU sums the two in different orders; clients see by equality whether the token is the most probable.
    const double logprob = each.id == token.id ? token.logprob : each.logprob;
    entry.top.emplace_back(token_bytes(tokenizer_, before_, each.id), logprob);
  }
  push(std::move(entry), token.id);
}

Json TokenLogprobs::take() {
  Json value = chat_ ? chat_json() : completion_json();
  entries_.clear();
  return value;
}

Json TokenLogprobs::completion_json() {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const Entry& entry : entries_) {
    const std::string text = shown(entry.bytes);
    Json top = Json::object();
    for (const auto& [bytes, logprob] : entry.top) top.emplace(shown(bytes), logprob);
    if (entry.has_logprob) top.emplace(text, entry.logprob);
    tokens.push_back(text);
    logprobs.push_back(entry.has_logprob ? Json(entry.logprob) : Json());
    tops.push_back(entry.has_logprob ? std::move(top) : Json());
    offsets.push_back(offset_);
    offset_ += code_points(entry.bytes);
  }
  return {{"tokens", tokens}, {"token_logprobs", logprobs}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

Json TokenLogprobs::chat_json() {
  const auto described = [](const std::string& bytes, double logprob) -> Json {
    return {{"token", bytes}, {"logprob", logprob}, {"bytes", byte_list(bytes)}};
  };
  Json content = Json::array();
  for (const Entry& entry : entries_) {
    Json value = described(entry.bytes, entry.logprob);
    value["top_logprobs"] = Json::array();
    for (const auto& [bytes, logprob] : entry.top) value["top_logprobs"].push_back(described(bytes, logprob));
    content.push_back(std::move(value));
  }
  return {{"content", content}};
}

}  // namespace teratron
