// Special tokens of a tokenizer.json: the names in the files beside it, the added tokens in the text, and
// those that the post-processor adds.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "teratron/tokenizer/hf/json_fields.h"
#include "teratron/tokenizer/text/added_vocabulary.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// Contents of the special tokens; empty: none.
struct SpecialTokensMap {
  std::string bos, eos, pad, cls, sep, mask;
  std::vector<std::string> additional;
};

/// From special_tokens_map.json and tokenizer_config.json in the folder of tokenizer.json.
SpecialTokensMap read_special_tokens_map(const std::string& directory);
/// Replaces those of `names` that the files name.
void read_special_tokens_map(const std::string& directory, SpecialTokensMap& names);

using FindToken = std::function<std::optional<int32_t>(const std::string&)>;
/// eod is eos, else <|endoftext|>, <|end_of_text|> or </s>.
SpecialTokens find_special_tokens(const SpecialTokensMap& map, const FindToken& find);

/// "added_tokens"; none if missing.
std::vector<AddedToken> read_added_tokens(const JsonFields& json, JsonFields::Object top);

/// The vocabulary that tokens are added to.
struct ModelVocabulary {
  FindToken id_of;
  std::function<bool(int32_t)> has_id;
  int64_t id_bound;  // the largest id + 1
};

/// Added tokens, checked against the vocabulary.
struct AddedTokens {
  AddedVocabulary raw, normalized;  // found before and after normalization
  std::unordered_map<int32_t, std::string> content;
  std::unordered_set<int32_t> special;
  int64_t vocab_size = 0;  // the largest id + 1, with the model's

  std::optional<int32_t> id_of(const std::string& token) const;
};
/// `normalize`: for the contents of tokens that are found in normalized text. UserError(data) for empty
/// tokens and ids out of range, used twice or for another token of the vocabulary.
AddedTokens check_added_tokens(const std::vector<AddedToken>& added, const ModelVocabulary& model,
                               const std::function<std::string(const std::string&)>& normalize,
                               const std::string& where);

/// Offsets exclude leading and trailing spaces of a token, except for the space that `add_prefix_space`
/// added.
struct TrimOffsets {
  bool add_prefix_space;
};

struct PostProcessor {
  std::vector<int32_t> prefix, suffix;  // added around the text
  std::optional<TrimOffsets> trim;
};
/// "post_processor"; empty if missing.
PostProcessor read_post_processor(const JsonFields& json, JsonFields::Object top);
/// UserError(data) for ids outside the vocabulary.
void check_post_processor(const PostProcessor& processor, int64_t vocab_size, const std::string& where);

}  // namespace teratron
