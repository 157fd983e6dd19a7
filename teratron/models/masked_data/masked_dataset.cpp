#include "teratron/models/masked_data/masked_dataset.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/data/numpy_random.h"

namespace teratron {

namespace {

using Positions = std::vector<int64_t>;

/// Positions of each word, without special tokens.
std::vector<Positions> words_of(std::span<const int64_t> tokens, const MaskedDatasetOptions& options) {
  std::vector<Positions> words;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t token = tokens[i];
    if (token == options.cls_id || token == options.sep_id) continue;
    const bool continues = token >= 0 && token < static_cast<int64_t>(options.continues_word.size()) &&
                           options.continues_word[static_cast<size_t>(token)];
    if (!continues || words.empty()) words.emplace_back();
    words.back().push_back(static_cast<int64_t>(i));
  }
  return words;
}

std::vector<double> ngram_weights(const MaskedDatasetOptions& options) {
  std::vector<double> weights;
  double sum = 0;
  for (int64_t n = 1; n <= options.max_ngram; ++n) sum += weights.emplace_back(1.0 / static_cast<double>(n));
  for (double& weight : weights) weight /= sum;
  if (options.longer_ngrams) std::reverse(weights.begin(), weights.end());
  return weights;
}

/// Positions of the n words starting at `word`; fewer at the end.
Positions ngram_at(const std::vector<Positions>& words, size_t word, int64_t n) {
  Positions positions;
  const size_t end = std::min(words.size(), word + static_cast<size_t>(n));
  for (size_t i = word; i < end; ++i) positions.insert(positions.end(), words[i].begin(), words[i].end());
  return positions;
}

/// BERT's replacement of one masked token.
int64_t replacement(int64_t token, const MaskedDatasetOptions& options, NumpyRandom& random) {
  if (random.random_sample() < 0.8) return options.mask_id;
  if (random.random_sample() >= 0.5) return random.randint(0, options.vocab_size);
  return token;
}

// Sentences [first, last) of the row's.
Positions read_sentences(const IndexedDataset& data, const SampleMappingRow& row, SequenceRange part,
                         int64_t vocab_size) {
  Positions tokens;
  for (int64_t sentence = row.first + part.first; sentence < row.first + part.last; ++sentence) {
    const size_t before = tokens.size();
    data.read(sentence, 0, -1, tokens);
    data.check_vocabulary(sentence, 0, std::span(tokens).subspan(before), vocab_size);
  }
  return tokens;
}

void pad(Positions& values, int64_t length, int64_t value) {
  values.resize(static_cast<size_t>(length), value);
}

}  // namespace

uint32_t sample_seed(uint32_t seed, int64_t i) {
  return static_cast<uint32_t>(seed + static_cast<uint64_t>(i));
}

std::vector<MaskedSpan> mask_tokens(std::vector<int64_t>& tokens, int64_t target_length,
                                    const MaskedDatasetOptions& options, NumpyRandom& random) {
  const auto words = words_of(tokens, options);
  const double rounded = std::nearbyint(static_cast<double>(tokens.size()) * options.masking_probability);
  const double num_masked =
      std::min(options.masking_probability * static_cast<double>(target_length), std::max(1.0, rounded));
  const auto weights = ngram_weights(options);
  std::vector<size_t> candidates(words.size());
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i] = i;
  random.shuffle(std::span(candidates));

  std::vector<MaskedSpan> spans;
  std::set<int64_t> masked;
  for (const size_t word : candidates) {
    if (static_cast<double>(masked.size()) >= num_masked) break;
    int64_t n = options.geometric_ngrams ? std::min(random.geometric(0.2), options.max_ngram)
                                         : random.choice(weights) + 1;
    Positions positions = ngram_at(words, word, n);
    const auto fits = [&] { return num_masked >= static_cast<double>(masked.size() + positions.size()); };
    while (!fits() && n > 1) positions = ngram_at(words, word, --n);
    if (!fits()) continue;
    if (std::any_of(positions.begin(), positions.end(), [&](int64_t p) { return masked.contains(p); }))
      continue;
    MaskedSpan span{.positions = positions, .labels = {}};
    for (const int64_t position : positions) {
      masked.insert(position);
      int64_t& token = tokens[static_cast<size_t>(position)];
      span.labels.push_back(token);
      if (options.sentinel_ids.empty()) token = replacement(token, options, random);
    }
    spans.push_back(std::move(span));
  }
  std::sort(spans.begin(), spans.end(), [](const MaskedSpan& a, const MaskedSpan& b) {
    return a.positions.front() < b.positions.front();
  });
  return spans;
}

void join_pair(BertSample& sample, std::span<const int64_t> a, std::span<const int64_t> b,
               const MaskedDatasetOptions& options) {
  sample.text = {options.cls_id};
  sample.text.insert(sample.text.end(), a.begin(), a.end());
  sample.text.push_back(options.sep_id);
  sample.types.assign(sample.text.size(), 0);
  if (!b.empty()) {
    sample.text.insert(sample.text.end(), b.begin(), b.end());
    sample.text.push_back(options.sep_id);
    sample.types.resize(sample.text.size(), 1);
  }
}

void mask_pair(BertSample& sample, int64_t target_length, const MaskedDatasetOptions& options,
               NumpyRandom& random) {
  const int64_t length = options.sequence_length;
  sample.tokens = static_cast<int64_t>(sample.text.size());
  sample.padding_mask.assign(sample.text.size(), 1);
  sample.labels.assign(static_cast<size_t>(length), -1);
  sample.loss_mask.assign(static_cast<size_t>(length), 0);
  for (const MaskedSpan& span : mask_tokens(sample.text, target_length, options, random)) {
    for (size_t k = 0; k < span.positions.size(); ++k) {
      const auto position = static_cast<size_t>(span.positions[k]);
      sample.labels[position] = span.labels[k] == options.pad_id ? 0 : span.labels[k];
      sample.loss_mask[position] = 1;
    }
  }
  pad(sample.text, length, options.pad_id);
  pad(sample.types, length, options.pad_id);
  pad(sample.padding_mask, length, options.pad_id);
}

BertDataset::BertDataset(std::shared_ptr<const IndexedDataset> data, IndexArray mapping,
                         MaskedDatasetOptions options)
    : data_(std::move(data)), mapping_(std::move(mapping)), options_(std::move(options)) {
  TERATRON_ASSERT(options_.sentinel_ids.empty() && options_.sequence_length > bert_special_tokens);
}

BertSample BertDataset::get(int64_t i) const {
  const SampleMappingRow row = row_at(mapping_, i);
  NumpyRandom random(sample_seed(options_.seed, i));
  const int64_t sentences = row.last - row.first;
  BertSample sample;
  int64_t pivot = sentences;
  if (options_.classification_head) {
    pivot = sentences >= 3 ? random.randint(1, sentences) : 1;
    sample.is_random = random.random_sample() < 0.5;
  }
  Positions a = read_sentences(*data_, row, {0, pivot}, options_.vocab_size);
  Positions b = read_sentences(*data_, row, {pivot, sentences}, options_.vocab_size);
  if (sample.is_random) std::swap(a, b);
  while (static_cast<int64_t>(a.size() + b.size()) > row.target_length) {
    Positions& longer = a.size() > b.size() ? a : b;
    longer.erase(random.random_sample() < 0.5 ? longer.begin() : longer.end() - 1);
    sample.truncated = true;
  }
  join_pair(sample, a, b, options_);
  mask_pair(sample, row.target_length, options_, random);
  return sample;
}

std::string BertDataset::describe() const {
  return fmt::format("{}: {} samples of {} tokens, {} of them masked", data_->prefix(), size(),
                     options_.sequence_length, options_.masking_probability);
}

T5Dataset::T5Dataset(std::shared_ptr<const IndexedDataset> data, IndexArray mapping,
                     MaskedDatasetOptions options)
    : data_(std::move(data)), mapping_(std::move(mapping)), options_(std::move(options)) {
  if (!options_.sentinel_ids.empty()) return;
  throw config_error(
      {.what = "T5 needs sentinel tokens", .where = "--vocab-extra-ids", .fix = "Add --vocab-extra-ids 100"});
}

T5Sample T5Dataset::get(int64_t i) const {
  const SampleMappingRow row = row_at(mapping_, i);
  NumpyRandom random(sample_seed(options_.seed, i));
  const int64_t target = std::min(row.target_length, options_.sequence_length);
  T5Sample sample;
  Positions tokens = read_sentences(*data_, row, {0, row.last - row.first}, options_.vocab_size);
  sample.truncated = static_cast<int64_t>(tokens.size()) > target;
  if (sample.truncated) tokens.resize(static_cast<size_t>(target));
  const auto spans = mask_tokens(tokens, target, options_, random);
  if (spans.size() > options_.sentinel_ids.size()) {
    throw config_error({.what = fmt::format("a sample has {} masked spans, but there are {} sentinel tokens",
                                            spans.size(), options_.sentinel_ids.size()),
                        .where = "--vocab-extra-ids",
                        .fix = "Add sentinel tokens, or mask fewer tokens"});
  }
  sample.text_dec = {options_.bos_id};
  int64_t copied = 0;
  for (size_t k = 0; k < spans.size(); ++k) {
    const int64_t sentinel = options_.sentinel_ids[k];
    sample.text_enc.insert(sample.text_enc.end(), tokens.begin() + copied,
                           tokens.begin() + spans[k].positions.front());
    sample.text_enc.push_back(sentinel);
    copied = spans[k].positions.back() + 1;
    for (Positions* decoder : {&sample.text_dec, &sample.labels}) {
      decoder->push_back(sentinel);
      decoder->insert(decoder->end(), spans[k].labels.begin(), spans[k].labels.end());
    }
  }
  sample.text_enc.insert(sample.text_enc.end(), tokens.begin() + copied, tokens.end());
  sample.labels.push_back(options_.eos_id);
  if (static_cast<int64_t>(sample.text_dec.size()) > options_.decoder_sequence_length) {
    throw config_error({.what = fmt::format("a sample needs {} decoder tokens", sample.text_dec.size()),
                        .where = "--decoder-seq-length",
                        .fix = "Increase it, or mask fewer tokens"});
  }
  sample.enc_mask.assign(sample.text_enc.size(), 1);
  sample.dec_mask.assign(sample.text_dec.size(), 1);
  sample.loss_mask = sample.dec_mask;
  pad(sample.text_enc, options_.sequence_length, options_.pad_id);
  pad(sample.enc_mask, options_.sequence_length, 0);
  pad(sample.text_dec, options_.decoder_sequence_length, options_.pad_id);
  pad(sample.dec_mask, options_.decoder_sequence_length, 0);
  pad(sample.loss_mask, options_.decoder_sequence_length, 0);
  pad(sample.labels, options_.decoder_sequence_length, -1);
  std::replace(sample.labels.begin(), sample.labels.end(), options_.pad_id, int64_t{0});
  return sample;
}

}  // namespace teratron
