// Normalizers and pre-tokenizers of tokenizer.json for the models of piece_model.h, as in Hugging Face
// tokenizers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "teratron/tokenizer/sentencepiece/sentencepiece_normalizer.h"
#include "teratron/tokenizer/text/regex_split.h"
#include "teratron/tokenizer/unicode/normalized_string.h"

namespace teratron {

/// SentencePiece's precompiled rules, applied to each grapheme cluster of less than 6 bytes, else to each
/// character: the shortest key at its beginning replaces all of it.
struct PrecompiledStep {
  std::shared_ptr<const CharsMap> map;
};
/// The rules of this map. UserError(data) at `where` as CharsMap.
PrecompiledStep precompiled_step(const std::string& charsmap, const std::string& where);
struct ReplaceStep {
  std::shared_ptr<const Regex> pattern;
  std::string content;
};
struct PrependStep {
  std::string text;
};
struct StripStep {
  bool left = true, right = true;  // whitespace
};
using NormalizerStep =
    std::variant<PrecompiledStep, ReplaceStep, PrependStep, StripStep, const unicode::Normalization*>;

/// A step never adds to an empty text.
NormalizedString apply_step(const NormalizerStep& step, NormalizedView text);

enum class PrependScheme : uint8_t { always, first, never };

/// Spaces become a symbol, which is also put before the text unless it begins with one (`first`: only at the
/// beginning of the original text); then each symbol begins a word.
struct MetaspaceStep {
  std::string symbol;
  PrependScheme scheme = PrependScheme::always;
  bool split = true;
  std::shared_ptr<const Regex> space, pattern;  // " ", and the symbol
};
struct SplitStep {
  std::shared_ptr<const Regex> pattern;
  SplitBehavior behavior = SplitBehavior::removed;
  bool invert = false;
};
using WordStep = std::variant<MetaspaceStep, SplitStep>;

/// Calls `word` with the words that remain after all steps from `first` on.
void split_words(const std::vector<WordStep>& steps, size_t first, NormalizedView text,
                 const std::function<void(NormalizedView)>& word);

}  // namespace teratron
