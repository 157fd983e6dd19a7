#include "teratron/models/gpt/data/gpt_dataset.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

namespace {

/// Calls start_segment(position) where a document starts inside the sample.
template <typename Function>
void for_each_segment(std::span<const int64_t> tokens, const GPTMaskOptions& masks,
                      std::span<const int32_t> sequence_starts, Function start_segment) {
  if (masks.inter_document_masking) {
    for (const int32_t start : sequence_starts) {
      if (start < static_cast<int32_t>(tokens.size())) start_segment(start);
    }
    return;
  }
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (tokens[i] == masks.eod_id) start_segment(static_cast<int32_t>(i) + 1);
  }
}

void fill_masks(const GPTMaskOptions& masks, std::span<const int32_t> sequence_starts, Sample& sample) {
  const size_t length = sample.tokens.size();
  sample.loss_mask.assign(length, 1.0f);
  sample.segment_start.assign(length, 0);
  sample.position_ids.resize(length);
  std::iota(sample.position_ids.begin(), sample.position_ids.end(), 0);
  const bool reset_positions = masks.reset_position_ids || masks.inter_document_masking;
  const bool reset_attention = masks.reset_attention_mask || masks.inter_document_masking;
  if (reset_positions || reset_attention) {
    for_each_segment(sample.tokens, masks, sequence_starts, [&](int32_t start) {
      if (reset_positions) std::iota(sample.position_ids.begin() + start, sample.position_ids.end(), 0);
      if (reset_attention) std::fill(sample.segment_start.begin() + start, sample.segment_start.end(), start);
    });
  }
  for (size_t i = 0; i < length; ++i) {
    const bool masked =
        (masks.eod_mask_loss && sample.tokens[i] == masks.eod_id) || sample.labels[i] == masks.pad_id;
    if (masked) sample.loss_mask[i] = 0;
  }
  std::replace(sample.tokens.begin(), sample.tokens.end(), masks.pad_id, int64_t{0});
  std::replace(sample.labels.begin(), sample.labels.end(), masks.pad_id, int64_t{0});
}

uint64_t mix(uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

int64_t dataset_pad_id(const SpecialTokens& special, bool allow_ambiguous) {
  if (!special.pad) return -1;
  const bool ambiguous = special.pad == special.eos || special.pad == special.eod;
  return ambiguous && !allow_ambiguous ? -1 : *special.pad;
}

GPTDataset::GPTDataset(std::shared_ptr<const IndexedDataset> data, GPTIndex index, GPTIndexOptions options,
                       GPTMaskOptions masks)
    : data_(std::move(data)), index_(std::move(index)), options_(options), masks_(masks) {}

int64_t GPTDataset::sequence_at(int64_t position) const {
  if (position >= 0 && position < index_.document_index.rows()) {
    const int64_t sequence = index_.document_index.at(position);
    if (sequence >= 0 && sequence < data_->sequences()) return sequence;
  }
  throw data_error(
      {.what = fmt::format("the cached index refers to document {}, which does not exist", position),
       .where = data_->prefix(),
       .fix = "Remove the cache folder; the index will be rebuilt"});
}

void GPTDataset::read_tokens(int64_t i, std::vector<int64_t>& tokens,
                             std::vector<int32_t>& sequence_starts) const {
  const int64_t row = index_.shuffle_index.at(i);
  if (row < 0 || row + 1 >= index_.sample_index.rows()) sequence_at(-1);
  const int64_t first = index_.sample_index.at(row, 0);
  const int64_t last = index_.sample_index.at(row + 1, 0);
  const int64_t end = index_.sample_index.at(row + 1, 1) + (options_.add_extra_token ? 1 : 0);
  int64_t start = index_.sample_index.at(row, 1);
  tokens.clear();
  const int64_t limit = options_.sequence_length + 1;
  for (int64_t position = first; position <= last; ++position, start = 0) {
    const int64_t sequence = sequence_at(position);
    const int64_t count = position == last ? end - start : -1;
    const size_t before = tokens.size();
    sequence_starts.push_back(static_cast<int32_t>(before));
    data_->read(sequence, start, count, tokens);
    if (masks_.vocab_size > 0)
      data_->check_vocabulary(sequence, start, std::span(tokens).subspan(before), masks_.vocab_size);
    if (static_cast<int64_t>(tokens.size()) > limit) sequence_at(-1);
  }
}

void GPTDataset::get(int64_t i, Sample& sample) const {
  const auto length = static_cast<size_t>(options_.sequence_length);
  std::vector<int32_t> sequence_starts;
  read_tokens(i, sample.tokens, sequence_starts);
  sample.tokens.resize(length + (options_.add_extra_token ? 1 : 0), masks_.pad_id);
  sample.labels.assign(sample.tokens.begin() + 1, sample.tokens.end());
  sample.labels.resize(length, masks_.pad_id);
  sample.tokens.resize(length);
  fill_masks(masks_, sequence_starts, sample);
}

std::string GPTDataset::describe() const {
  return fmt::format("{}: {} samples of {} tokens from {} epoch{} of {} tokens", data_->prefix(), size(),
                     sequence_length(), index_.epochs, index_.epochs == 1 ? "" : "s",
                     index_.tokens_per_epoch);
}

MockGPTDataset::MockGPTDataset(const Options& options) : options_(options) {
  TERATRON_ASSERT(options.vocab_size > 1 && options.sequence_length > 0 && options.samples >= 0);
}

void MockGPTDataset::get(int64_t i, Sample& sample) const {
  const uint64_t random = mix(mix(options_.seed) + static_cast<uint64_t>(i));
  const auto vocab = static_cast<uint64_t>(options_.vocab_size);
  const uint64_t step = 1 + (random >> 32) % 8;
  uint64_t token = (random & 0xffffffff) % vocab;
  sample.tokens.clear();
  sample.labels.clear();
  for (int64_t position = 0; position < options_.sequence_length; ++position) {
    sample.tokens.push_back(static_cast<int64_t>(token));
    token = (token + step) % vocab;
    sample.labels.push_back(static_cast<int64_t>(token));
  }
  fill_masks({}, {}, sample);
}

std::string MockGPTDataset::describe() const {
  return fmt::format("mock data: {} samples of {} tokens, vocabulary {}", size(), sequence_length(),
                     options_.vocab_size);
}

}  // namespace teratron
