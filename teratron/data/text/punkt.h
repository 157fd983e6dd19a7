// Cutting text into sentences with a trained Punkt model (Kiss and Strunk, "Unsupervised Multilingual Sentence
// Boundary Detection", 2006), as the PunktSentenceTokenizer of nltk 3.10 does.
//
// A model is a folder in nltk's punkt_tab format: abbrev_types.txt, collocations.tab, sent_starters.txt,
// ortho_context.tab.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

enum class SentenceBlanks : uint8_t {
  drop,  // white space between sentences is left out
  keep,  // it stays at the end of the sentence before (--keep-newlines)
};

/// Thread-safe.
class PunktSplitter {
 public:
  /// Reads a model; a missing or damaged file is UserError(data).
  PunktSplitter(const std::string& folder, SentenceBlanks blanks);
  /// English without a trained model: the same algorithm with a list of usual abbreviations (Mr., e.g., No. ...), after
  /// which a sentence ends only before words that rarely follow them (The, He, But ...). A single letter with a
  /// period is an initial when a capital follows.
  static PunktSplitter english(SentenceBlanks blanks);
  PunktSplitter(PunktSplitter&&) noexcept;
  ~PunktSplitter();

  /// The sentences of a text of valid UTF-8. As Megatron-LM, pieces of 1,000,000 characters are cut one by one.
  std::vector<std::string> split(std::string_view text) const;

 private:
  struct Model;
  explicit PunktSplitter(std::unique_ptr<const Model> model);
  std::unique_ptr<const Model> model_;
};

}  // namespace teratron
