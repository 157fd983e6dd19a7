#include "teratron/models/gpt/sft/sft_dataset.h"

#include <algorithm>

#include "teratron/models/labelled_data/labelled_texts.h"

namespace teratron {

SftDataset::SftDataset(std::shared_ptr<const SftRows> rows, const Options& options)
    : rows_(std::move(rows)),
      options_(options),
      order_(epoch_order(std::ssize(rows_->rows), options.samples, options.shuffle)) {}

std::shared_ptr<const Dataset> SftDataset::resized(std::optional<int64_t> samples) const {
  Options options = options_;
  options.samples = samples;
  return std::make_shared<SftDataset>(rows_, options);
}

void SftDataset::get(int64_t i, const Sample& sample) const {
  std::vector<const TokenizedConversation*> conversations;
  const int64_t index = order_.at(static_cast<size_t>(i));
  for (const int64_t each : rows_->rows[static_cast<size_t>(index)])
    conversations.push_back(&rows_->conversations[static_cast<size_t>(each)]);
  const PackedConversations row = pack_row(conversations, options_.sequence_length, options_.pad);
  std::ranges::copy(row.tokens, sample.i64("tokens").begin());
  std::ranges::copy(row.labels, sample.i64("labels").begin());
  std::ranges::copy(row.is_learned, sample.f32("loss_mask").begin());
  std::ranges::copy(row.starts, sample.i32("segment_start").begin());
  const std::span<int64_t> positions = sample.i64("position_ids");
  for (size_t p = 0; p < positions.size(); ++p) positions[p] = static_cast<int64_t>(p) - row.starts[p];
}

}  // namespace teratron
