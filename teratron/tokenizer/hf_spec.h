// What a tokenizer.json (Hugging Face tokenizers) says, for byte-level BPE.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/tokenizer/added_tokens.h"
#include "teratron/tokenizer/bpe_model.h"
#include "teratron/tokenizer/pre_split.h"
#include "teratron/tokenizer/regex_split.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

enum class Normalization : uint8_t { nfc, nfd, lowercase };

/// One pre-tokenizer. Either one of the known patterns, or a regex (or literal) with its behaviour.
struct SplitStep {
  std::optional<SplitPattern> pattern;
  std::shared_ptr<const Regex> regex;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;            // what is between the matches counts as the match
  bool add_prefix_space = false;  // a piece that does not begin with a blank gets one
};

struct HuggingFaceSpec {
  std::vector<AddedToken> added;
  std::vector<Normalization> normalizers;
  std::vector<SplitStep> steps;
  BpeSpec model;
  std::vector<int32_t> prefix, suffix;  // put around a text by the post-processor
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
