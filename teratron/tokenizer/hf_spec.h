// What a tokenizer.json (Hugging Face tokenizers) says, for byte-level BPE.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/tokenizer/bpe/added_tokens.h"
#include "teratron/tokenizer/bpe/bpe_model.h"
#include "teratron/tokenizer/bpe/pre_split.h"
#include "teratron/tokenizer/bpe/regex_split.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// One pre-tokenizer. Either one of the known patterns, or a regex (or literal) with its behaviour.
struct SplitStep {
  std::optional<SplitPattern> pattern;
  std::shared_ptr<const Regex> regex;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;            // what is between the matches counts as the match
  bool add_prefix_space = false;  // a piece that does not begin with a blank gets one
};

/// A post-processor that leaves blanks at both ends of a token out of its offsets; the blank that `add_prefix_space` put
/// before a text stays.
struct OffsetTrim {
  bool add_prefix_space;
};

struct HuggingFaceSpec {
  std::vector<AddedToken> added;
  std::vector<const unicode::Rewriting*> normalizers;
  std::vector<SplitStep> steps;
  BpeSpec model;
  std::vector<int32_t> prefix, suffix;  // put around a text by the post-processor
  std::optional<OffsetTrim> trim;
};

/// Reads tokenizer.json. Throws UserError(data): not JSON, fields missing or of a wrong type, duplicate keys,
/// parts that are not supported (named), tokens that are not in the vocabulary.
HuggingFaceSpec read_hugging_face(const std::string& path);

/// Special tokens by name, from tokenizer_config.json and special_tokens_map.json beside tokenizer.json;
/// contents are looked up by the caller.
struct SpecialNames {
  std::string bos, eos, pad, cls, sep, mask;
  std::vector<std::string> additional;
};
SpecialNames read_special_names(const std::string& directory);

}  // namespace teratron
