// Samples of a GPT dataset as vectors, for tests.
#pragma once

#include "teratron/models/gpt/data/gpt_dataset.h"

namespace teratron {

struct GPTSample {
  std::vector<int64_t> tokens, labels, position_ids;
  std::vector<float> loss_mask;
  std::vector<int32_t> segment_start;
};

inline GPTSample read_sample(const Dataset& dataset, int64_t i, int64_t sequence_length) {
  Batch batch(gpt_schema(sequence_length, {.reset_position_ids = true, .reset_attention_mask = true}), 1);
  dataset.get(i, batch.sample(0));
  const auto copy = []<typename T>(std::span<const T> values) {
    return std::vector<T>(values.begin(), values.end());
  };
  return {copy(batch.values<int64_t>("tokens")), copy(batch.values<int64_t>("labels")),
          copy(batch.values<int64_t>("position_ids")), copy(batch.values<float>("loss_mask")),
          copy(batch.values<int32_t>("segment_start"))};
}

}  // namespace teratron
