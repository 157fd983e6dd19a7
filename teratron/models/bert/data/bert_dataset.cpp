#include "teratron/models/bert/data/bert_dataset.h"

#include <algorithm>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/data/numpy_random.h"

namespace teratron {

namespace {

void fill_predictions(const BertSample& from, const Sample& to) {
  const auto positions = to.i64("masked_positions"), labels = to.i64("masked_labels");
  const auto mask = to.f32("masked_loss_mask");
  size_t count = 0;
  for (size_t position = 0; position < from.loss_mask.size(); ++position) {
    if (from.loss_mask[position] == 0) continue;
    TERATRON_ASSERT(count < positions.size(), "more than {} masked tokens", positions.size());
    positions[count] = static_cast<int64_t>(position);
    labels[count] = from.labels[position];
    mask[count++] = 1.0F;
  }
}

}  // namespace

void fill_bert_columns(const BertSample& from, const Sample& to) {
  std::ranges::copy(from.text, to.i64("tokens").begin());
  if (to.has("types")) std::copy_n(from.types.begin(), from.tokens, to.i64("types").begin());
  if (to.has("segment_start"))
    std::ranges::fill(to.i32("segment_start").subspan(static_cast<size_t>(from.tokens)),
                      static_cast<int32_t>(from.tokens));
  fill_predictions(from, to);
  if (to.has("is_random")) to.i64("is_random")[0] = from.is_random ? 1 : 0;
}

int64_t most_predictions(int64_t sequence_length, double masking_probability) {
  const int64_t longest = sequence_length - bert_special_tokens;
  return std::max<int64_t>(1, static_cast<int64_t>(masking_probability * static_cast<double>(longest)));
}

BatchSchema bert_schema(const BertSchemaOptions& options) {
  using Kind = Column::Kind;
  using Stages = Column::Stages;
  const std::vector<int64_t> row = {options.sequence_length}, predictions = {options.predictions};
  BatchSchema schema = {
      {.name = "tokens", .shape = row, .stages = Stages::ends},
      {.name = "sequence_index", .shape = row, .kind = Kind::index},
      {.name = "masked_positions", .shape = predictions, .kind = Kind::sample, .stages = Stages::last},
      {.name = "masked_labels", .shape = predictions, .kind = Kind::sample, .stages = Stages::last},
      {.name = "masked_loss_mask",
       .type = ColumnType::f32,
       .shape = predictions,
       .kind = Kind::sample,
       .stages = Stages::last}};
  if (options.sentence_pairs) {
    schema.push_back({.name = "types", .shape = row, .stages = Stages::first});
    schema.push_back({.name = "is_random", .shape = {1}, .kind = Kind::sample, .stages = Stages::last});
  }
  if (options.padding) {
    schema.push_back(
        {.name = "segment_start", .type = ColumnType::i32, .shape = row, .kind = Kind::segments});
  }
  return schema;
}

void BertSamples::get(int64_t i, const Sample& sample) const {
  fill_bert_columns(samples_.get(i), sample);
}

MockBertDataset::MockBertDataset(int64_t samples, MaskedDatasetOptions options)
    : samples_(samples), options_(std::move(options)) {
  TERATRON_ASSERT(options_.vocab_size >= 8 && options_.sequence_length > bert_special_tokens);
  int64_t id = 0;
  for (int64_t* const special : {&options_.pad_id, &options_.cls_id, &options_.sep_id, &options_.mask_id}) {
    if (*special < 0) *special = id;
    ++id;
  }
}

void MockBertDataset::get(int64_t i, const Sample& sample) const {
  constexpr int64_t first = 4, period = 4;
  NumpyRandom random(sample_seed(options_.seed, i));
  const int64_t words = options_.vocab_size - first, length = options_.sequence_length - bert_special_tokens;
  const int64_t start = random.randint(0, words), step = random.randint(1, 9);
  std::vector<int64_t> a, b;
  for (int64_t k = 0; k < length; ++k) {
    const bool in_a = 2 * k < length;
    (in_a ? a : b).push_back(first + (start + (k % period + (in_a ? 0 : period)) * step) % words);
  }
  BertSample pair;
  pair.is_random = options_.classification_head && random.random_sample() < 0.5;
  if (pair.is_random) std::swap(a, b);
  join_pair(pair, a, b, options_);
  mask_pair(pair, length, options_, random);
  fill_bert_columns(pair, sample);
}

std::string MockBertDataset::describe() const {
  return fmt::format("mock data: {} sentence pairs of {} tokens, vocabulary {}", samples_,
                     options_.sequence_length, options_.vocab_size);
}

}  // namespace teratron
