#include "teratron/tokenizer/bpe/hf_tokenizer.h"

namespace teratron {

HuggingFaceTokenizer::HuggingFaceTokenizer(BpeJson json, const SpecialTokensMap& special,
                                           bool add_special_tokens)
    : ByteLevelTokenizer(json.model) {
  normalizers_ = std::move(json.normalizers);
  steps_ = std::move(json.steps);
  trim_ = json.post_processor.trim;
  const ModelVocabulary vocabulary{.id_of = [&](const std::string& token) { return model_.id_of(token); },
                                   .has_id = [&](int32_t id) { return !model_.bytes_of(id).empty(); },
                                   .id_bound = model_.id_bound()};
  const auto normalized = [&](const std::string& content) {
    return normalizers_.empty() ? content : std::string(normalize({content}).view().text);
  };
  AddedTokens added = check_added_tokens(json.added, vocabulary, normalized, json.model.where);
  vocab_size_ = added.vocab_size;
  check_post_processor(json.post_processor, vocab_size_, json.model.where);
  if (add_special_tokens) {
    prefix_ = std::move(json.post_processor.prefix);
    suffix_ = std::move(json.post_processor.suffix);
  }
  special_ = find_special_tokens(special, [&](const std::string& content) {
    const auto id = added.id_of(content);
    return id ? id : model_.id_of(content);
  });
  added_ = std::move(added.raw);
  normalized_added_ = std::move(added.normalized);
  added_content_ = std::move(added.content);
  special_ids_ = std::move(added.special);
}

}  // namespace teratron
