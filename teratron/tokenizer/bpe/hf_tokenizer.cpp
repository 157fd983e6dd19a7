#include "teratron/tokenizer/bpe/hf_tokenizer.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

HuggingFaceTokenizer::HuggingFaceTokenizer(TokenizerJson json, const SpecialTokensMap& special,
                                           bool add_special_tokens)
    : ByteLevelTokenizer(json.model) {
  normalizers_ = std::move(json.normalizers);
  steps_ = std::move(json.steps);
  trim_ = json.trim;
  add_tokens(json.added, json.model.where);
  for (const auto* ids : {&json.prefix, &json.suffix}) {
    for (const int32_t id : *ids) {
      if (id < vocab_size_) continue;
      throw data_error(
          {.what = fmt::format("the post-processor's id {} is outside the vocabulary of {}", id, vocab_size_),
           .where = json.model.where});
    }
  }
  if (add_special_tokens) {
    prefix_ = std::move(json.prefix);
    suffix_ = std::move(json.suffix);
  }
  set_special(special, [&](const std::string& content) {
    const auto added = std::find_if(json.added.begin(), json.added.end(),
                                    [&](const AddedToken& token) { return token.content == content; });
    return added != json.added.end() ? std::optional(added->id) : model_.id_of(content);
  });
}

void HuggingFaceTokenizer::add_tokens(const std::vector<AddedToken>& added, const std::string& where) {
  const int64_t limit = model_.id_bound() + static_cast<int64_t>(added.size()) * 8 + 65536;
  std::vector<AddedToken> raw, normalized;
  std::unordered_map<std::string, int32_t> ids;
  for (const AddedToken& token : added) {
    const auto reject = [&](std::string what) {
      throw data_error(
          {.what = fmt::format("added token '{}' {}", printable(token.content), what), .where = where});
    };
    if (token.content.empty()) reject("is empty");
    if (token.id >= limit) reject(fmt::format("has an id out of range ({}, limit {})", token.id, limit));
    if (const auto in_model = model_.id_of(token.content); in_model && *in_model != token.id) {
      reject(fmt::format("has the id {} but is {} in the vocabulary", token.id, *in_model));
    } else if (!in_model && !model_.bytes_of(token.id).empty()) {
      reject(fmt::format("has the id {} of another token", token.id));
    }
    const auto [known, is_new] = ids.emplace(token.content, token.id);
    if (!is_new && known->second != token.id) reject("has two ids");
    if (is_new && !added_content_.emplace(token.id, token.content).second)
      reject("shares its id with another added token");
    vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
    if (!is_new) continue;
    (token.normalized ? normalized : raw).push_back(token);
    if (token.normalized && !normalizers_.empty())
      normalized.back().content = normalize({token.content}).view().text;
  }
  added_ = AddedVocabulary(std::move(raw));
  normalized_added_ = AddedVocabulary(std::move(normalized));
}

}  // namespace teratron
