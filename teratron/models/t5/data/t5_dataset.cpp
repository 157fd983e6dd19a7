#include "teratron/models/t5/data/t5_dataset.h"

#include <algorithm>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/data/numpy_random.h"

namespace teratron {

BatchSchema t5_schema(const T5SchemaOptions& options) {
  using Kind = Column::Kind;
  using Stages = Column::Stages;
  const std::vector<int64_t> source = {options.encoder_length}, target = {options.decoder_length};
  BatchSchema schema = {
      {.name = "encoder_tokens", .shape = source, .stages = Stages::first},
      {.name = "encoder_index", .shape = source, .kind = Kind::index},
      {.name = "decoder_tokens", .shape = target},
      {.name = "decoder_index", .shape = target, .kind = Kind::index},
      {.name = "labels", .shape = target, .stages = Stages::last},
      {.name = "loss_mask", .type = ColumnType::f32, .shape = target, .stages = Stages::last}};
  if (options.padding) schema.push_back({.name = "encoder_length", .shape = {1}, .kind = Kind::sample});
  return schema;
}

T5Samples::T5Samples(std::shared_ptr<const IndexedDataset> data, IndexArray mapping,
                     const MaskedDatasetOptions& options)
    : samples_(data, std::move(mapping), options),
      description_(fmt::format("{}: {} samples of {} and {} tokens, {} of them masked", data->prefix(),
                               samples_.size(), options.sequence_length, options.decoder_sequence_length,
                               options.masking_probability)) {}

void T5Samples::get(int64_t i, const Sample& sample) const {
  const T5Sample from = samples_.get(i);
  std::ranges::copy(from.text_enc, sample.i64("encoder_tokens").begin());
  std::ranges::copy(from.text_dec, sample.i64("decoder_tokens").begin());
  sample.i64("encoder_length")[0] = std::ranges::count(from.enc_mask, 1);
  const auto labels = sample.i64("labels");
  const auto mask = sample.f32("loss_mask");
  for (size_t k = 0; k < from.labels.size(); ++k) {
    labels[k] = std::max<int64_t>(from.labels[k], 0);
    mask[k] = static_cast<float>(from.loss_mask[k]);
  }
}

MockT5Dataset::MockT5Dataset(int64_t samples, const MaskedDatasetOptions& options)
    : samples_(samples), seed_(options.seed), vocabulary_(options.vocab_size) {
  TERATRON_ASSERT(vocabulary_ >= mock_t5_least_vocabulary);
}

void MockT5Dataset::get(int64_t i, const Sample& sample) const {
  constexpr int64_t first = 4, period = 4, bos = 1;
  NumpyRandom random(sample_seed(seed_, i));
  const int64_t words = vocabulary_ - first;
  const int64_t start = random.randint(0, words), step = random.randint(1, 9);
  const auto word = [&](size_t k) {
    return first + (start + static_cast<int64_t>(k % period) * step) % words;
  };
  const auto source = sample.i64("encoder_tokens"), target = sample.i64("decoder_tokens"),
             labels = sample.i64("labels");
  for (size_t k = 0; k < source.size(); ++k) source[k] = word(k);
  for (size_t k = 0; k < target.size(); ++k) {
    target[k] = k == 0 ? bos : word(k - 1);
    labels[k] = word(k);
  }
  std::ranges::fill(sample.f32("loss_mask"), 1.0F);
}

std::string MockT5Dataset::describe() const {
  return fmt::format("mock data: {} samples of an encoder and a decoder, vocabulary {}", samples_,
                     vocabulary_);
}

}  // namespace teratron
