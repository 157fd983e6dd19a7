#include "teratron/models/gpt/sft/sft_dataset.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

std::vector<TokenizedConversation> SftRows::row(int64_t i) const {
  const auto check = [i](bool is_right) {
    if (is_right) return;
    throw data_error({.what = fmt::format("row {} of conversations is damaged in the index", i),
                      .fix = "Remove the files sft-* from the cache folder; they are built again"});
  };
  const std::vector<int64_t> bounds = rows.values(i, 2);
  check(0 <= bounds[0] && bounds[0] <= bounds[1] && bounds[1] < conversations.rows());
  const std::vector<int64_t> starts = conversations.values(bounds[0], bounds[1] - bounds[0] + 1);
  check(0 <= starts.front() && std::ranges::is_sorted(starts) && starts.back() <= tokens.rows());
  const std::vector<int64_t> values = tokens.values(starts.front(), starts.back() - starts.front());
  std::vector<TokenizedConversation> all(starts.size() - 1);
  for (size_t c = 0; c < all.size(); ++c) {
    for (int64_t t = starts[c]; t < starts[c + 1]; ++t) {
      const int64_t value = values[static_cast<size_t>(t - starts.front())];
      all[c].tokens.push_back(static_cast<int32_t>(value < 0 ? -1 - value : value));
      all[c].is_learned.push_back(value < 0 ? 0 : 1);
    }
  }
  return all;
}

SftDataset::SftDataset(std::shared_ptr<const SftRows> rows, const Options& options)
    : rows_(std::move(rows)),
      options_(options),
      order_({.count = rows_->size(), .samples = options.samples, .shuffle = options.shuffle}) {}

std::shared_ptr<const Dataset> SftDataset::resized(std::optional<int64_t> samples) const {
  Options options = options_;
  options.samples = samples;
  return std::make_shared<SftDataset>(rows_, options);
}

void SftDataset::get(int64_t i, const Sample& sample) const {
  const std::vector<TokenizedConversation> in_row = rows_->row(order_.at(i));
  std::vector<const TokenizedConversation*> conversations;
  for (const TokenizedConversation& each : in_row) conversations.push_back(&each);
  const PackedConversations row = pack_row(conversations, options_.sequence_length, options_.pad);
  std::ranges::copy(row.tokens, sample.i64("tokens").begin());
  std::ranges::copy(row.labels, sample.i64("labels").begin());
  std::ranges::copy(row.is_learned, sample.f32("loss_mask").begin());
  std::ranges::copy(row.starts, sample.i32("segment_start").begin());
  const std::span<int64_t> positions = sample.i64("position_ids");
  for (size_t p = 0; p < positions.size(); ++p) positions[p] = static_cast<int64_t>(p) - row.starts[p];
}

}  // namespace teratron
