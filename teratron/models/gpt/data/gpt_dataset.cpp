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

bool resets_positions(const GPTMaskOptions& masks) {
  return masks.reset_position_ids || masks.inter_document_masking;
}

bool resets_attention(const GPTMaskOptions& masks) {
  return masks.reset_attention_mask || masks.inter_document_masking;
}

void fill_segments(const GPTMaskOptions& masks, std::span<const int32_t> sequence_starts,
                   const Sample& sample) {
  const bool positions = sample.has("position_ids") && resets_positions(masks);
  const bool attention = sample.has("segment_start") && resets_attention(masks);
  const std::span<int64_t> ids =
      sample.has("position_ids") ? sample.i64("position_ids") : std::span<int64_t>();
  const std::span<int32_t> starts = attention ? sample.i32("segment_start") : std::span<int32_t>();
  std::iota(ids.begin(), ids.end(), 0);
  if (!positions && !attention) return;
  for_each_segment(sample.i64("tokens"), masks, sequence_starts, [&](int32_t start) {
    if (positions) std::iota(ids.begin() + start, ids.end(), 0);
    if (attention) std::fill(starts.begin() + start, starts.end(), start);
  });
}

void fill_masks(const GPTMaskOptions& masks, std::span<const int32_t> sequence_starts, const Sample& sample) {
  fill_segments(masks, sequence_starts, sample);
  const std::span<int64_t> tokens = sample.i64("tokens"), labels = sample.i64("labels");
  const std::span<float> loss_mask = sample.f32("loss_mask");
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool masked = (masks.eod_mask_loss && tokens[i] == masks.eod_id) || labels[i] == masks.pad_id;
    loss_mask[i] = masked ? 0.0F : 1.0F;
  }
  std::replace(tokens.begin(), tokens.end(), masks.pad_id, int64_t{0});
  std::replace(labels.begin(), labels.end(), masks.pad_id, int64_t{0});
}

}  // namespace

BatchSchema gpt_schema(int64_t sequence_length, const GPTMaskOptions& masks) {
  using Kind = Column::Kind;
  using Stages = Column::Stages;
  const std::vector<int64_t> shape = {sequence_length};
  BatchSchema schema = {
      {.name = "tokens", .shape = shape, .stages = Stages::ends},
      {.name = "labels", .shape = shape, .stages = Stages::ends},
      {.name = "loss_mask", .type = ColumnType::f32, .shape = shape, .stages = Stages::ends},
      {.name = "sequence_index", .shape = shape, .kind = Kind::index}};
  if (resets_positions(masks)) schema.push_back({.name = "position_ids", .shape = shape});
  if (resets_attention(masks)) {
    schema.push_back(
        {.name = "segment_start", .type = ColumnType::i32, .shape = shape, .kind = Kind::segments});
  }
  return schema;
}

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

void GPTDataset::get(int64_t i, const Sample& sample) const {
  const auto length = static_cast<size_t>(options_.sequence_length);
  std::vector<int64_t> text;
  std::vector<int32_t> sequence_starts;
  read_tokens(i, text, sequence_starts);
  text.resize(length + (options_.add_extra_token ? 1 : 0), masks_.pad_id);
  text.resize(length + 1, masks_.pad_id);  // without the extra token the last label is padding
  std::copy_n(text.begin(), length, sample.i64("tokens").begin());
  std::copy_n(text.begin() + 1, length, sample.i64("labels").begin());
  fill_masks(masks_, sequence_starts, sample);
}

std::string GPTDataset::describe() const {
  return fmt::format("{}: {} samples of {} tokens from {} epoch{} of {} tokens", data_->prefix(), size(),
                     options_.sequence_length, index_.epochs, index_.epochs == 1 ? "" : "s",
                     index_.tokens_per_epoch);
}

}  // namespace teratron
