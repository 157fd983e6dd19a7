#include "teratron/tasks/finetune/pair_samples.h"

#include <algorithm>

namespace teratron {

void PairSamples::add(const PairSamples& other) {
  pairs_per_sample = other.pairs_per_sample;
  const auto text = static_cast<int64_t>(texts.size());
  const size_t pair = pairs.size();
  texts.insert(texts.end(), other.texts.begin(), other.texts.end());
  for (const TextPair& each : other.pairs) pairs.push_back({each.first, each.second + text});
  for (const Sample& each : other.samples) samples.push_back({each.id, each.label, each.first_pair + pair});
}

PairRow pair_row(const PairSamples& samples, const TextPair& pair, const SpecialTokens& special,
                 int64_t length) {
  PairRow row;
  std::vector<int32_t>& tokens = row.tokens;
  tokens.push_back(special.cls.value());
  tokens.insert(tokens.end(), pair.first.begin(), pair.first.end());
  tokens.push_back(special.sep.value());
  row.types_begin = static_cast<int64_t>(tokens.size());
  const std::vector<int32_t>& second = samples.texts.at(pair.second);
  tokens.insert(tokens.end(), second.begin(), second.end());
  if (static_cast<int64_t>(tokens.size()) >= length) tokens.resize(length - 1);
  row.types_begin = std::min(row.types_begin, static_cast<int64_t>(tokens.size()));
  tokens.push_back(special.sep.value());
  return row;
}

}  // namespace teratron
