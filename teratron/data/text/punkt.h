// Sentence splitting with a trained Punkt model (Kiss and Strunk, "Unsupervised Multilingual Sentence
// Boundary Detection", 2006), identical to the PunktSentenceTokenizer of nltk 3.10.
//
// A model is a folder in nltk's punkt_tab format: abbrev_types.txt, collocations.tab, sent_starters.txt,
// ortho_context.tab.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

enum class SentenceWhitespace : uint8_t {
  drop,  // remove white space between sentences
  keep,  // keep it at the end of the preceding sentence (--keep-newlines)
};

/// Thread-safe.
class PunktSplitter {
 public:
  /// Reads a model; a missing or damaged file is UserError(data).
  PunktSplitter(const std::string& folder, SentenceWhitespace whitespace);
  /// English without a trained model: the same algorithm with a list of common abbreviations (Mr., e.g., No.
  /// ...), after which a sentence ends only before words that rarely follow them (The, He, But ...). A single
  /// letter with a period is an initial if a capital follows.
  static PunktSplitter english(SentenceWhitespace whitespace);
  PunktSplitter(PunktSplitter&&) noexcept;
  ~PunktSplitter();

  /// The sentences of a valid UTF-8 text. As in Megatron-LM, pieces of 1,000,000 characters are split
  /// separately.
  std::vector<std::string> split(std::string_view text) const;

 private:
  struct Model;
  explicit PunktSplitter(std::unique_ptr<const Model> model);
  std::unique_ptr<const Model> model_;
};

}  // namespace teratron
