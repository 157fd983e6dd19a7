// Samples of finetuning tasks as Megatron-LM builds them: pairs of texts and a class.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// A question or premise and what it is about.
struct TextPair {
  std::vector<int32_t> first;
  int64_t second = 0;  // number of a text in PairSamples::texts
};

/// Samples of one file or folder, or of several.
struct PairSamples {
  struct Sample {
    int64_t id = 0;
    int64_t label = 0;
    size_t first_pair = 0;  // of `pairs` in a row
  };
  std::string name;  // in the lines on accuracies
  int64_t pairs_per_sample = 1;
  std::vector<Sample> samples;
  std::vector<TextPair> pairs;
  std::vector<std::vector<int32_t>> texts;

  void add(const PairSamples& other);
};

/// [CLS] first [SEP] second [SEP]; the first part, up to [SEP], has type 0, the rest 1. Cut to `length`, with
/// [SEP] at the end.
struct PairRow {
  std::vector<int32_t> tokens;
  int64_t types_begin = 0;  // of type 1
};
PairRow pair_row(const PairSamples& samples, const TextPair& pair, const SpecialTokens& special,
                 int64_t length);

/// What the readers below need.
struct PairReader {
  const Tokenizer& tokenizer;
  std::function<void(const std::string&)> log = [](const std::string&) {};  // Megatron-LM's lines
};

inline constexpr int64_t race_question_tokens = 128;

/// A folder of RACE: *.txt, a JSON object per line with article, questions, options and answers. Questions
/// with an option are cut to `longest` tokens. UserError(data) with file:line for all that is wrong.
PairSamples read_race(const std::string& folder, const PairReader& reader,
                      int64_t longest = race_question_tokens);
/// MNLI and QQP: tables with tabs between the columns. UserError likewise.
PairSamples read_mnli(const std::string& file, const PairReader& reader);
PairSamples read_qqp(const std::string& file, const PairReader& reader);

}  // namespace teratron
