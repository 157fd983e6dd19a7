// Common part of the byte-level BPE tokenizers (GPT-2, tokenizer.json, tiktoken).
//
// Encoding, as in Hugging Face tokenizers: added tokens are extracted from the text. The rest is normalized,
// pre-tokenized into words and encoded by the BPE model. Prefix and suffix are the special tokens of the
// post-processor.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "teratron/tokenizer/bpe/bpe_model.h"
#include "teratron/tokenizer/bpe/pre_tokenizer.h"
#include "teratron/tokenizer/bpe/word_cache.h"
#include "teratron/tokenizer/hf/special_tokens.h"
#include "teratron/tokenizer/text/added_vocabulary.h"
#include "teratron/tokenizer/text/regex_split.h"
#include "teratron/tokenizer/tokenizer.h"
#include "teratron/tokenizer/unicode/normalized_string.h"

namespace teratron {

/// One pre-tokenizer of a sequence: a known pattern, or else a regex with its behavior.
struct PreTokenizerStep {
  std::optional<SplitPattern> pattern;
  std::shared_ptr<const Regex> regex;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;            // the gaps between matches are the matches
  bool add_prefix_space = false;  // prepend a space unless there is one
};

class ByteLevelTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::vector<TokenSpan> encode_with_offsets(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override {
    return model_.decode(ids, added_content_);
  }
  std::unique_ptr<TextDecoder> decoder() const override;
  bool is_special(int32_t id) const override {
    return special_ids_.contains(id) || Tokenizer::is_special(id);
  }
  int64_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }

 protected:
  explicit ByteLevelTokenizer(const BpeConfig& config)
      : model_(config), caches_(model_), vocab_size_(model_.id_bound()) {}

  NormalizedString normalize(NormalizedView text) const;

  BpeModel model_;
  mutable WordCachePool caches_;
  std::vector<const unicode::Normalization*> normalizers_;
  std::vector<PreTokenizerStep> steps_;
  AddedVocabulary added_, normalized_added_;  // extracted before and after normalization
  std::unordered_map<int32_t, std::string> added_content_;
  std::unordered_set<int32_t> special_ids_;  // among the added tokens
  std::vector<int32_t> prefix_, suffix_;
  std::optional<TrimOffsets> trim_;
  SpecialTokens special_;
  int64_t vocab_size_;

 private:
  class Output;
  class IdOutput;
  class OffsetsOutput;
  class Decoder;
  void encode_all(NormalizedView text, Output& out) const;
  void encode_normalized(NormalizedView text, Output& out) const;
  void pre_tokenize(NormalizedView text, size_t step, Output& out) const;
  void trim(TokenSpan& span) const;
};

}  // namespace teratron
