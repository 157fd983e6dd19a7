// Steps of a generation as the engine describes them on a CPU, for tests of layers and models alone.
#pragma once

#include <memory>

#include <ATen/ATen.h>

#include "teratron/nn/layer_state.h"
#include "teratron/nn/tokens/generation_batch.h"

namespace teratron {

/// Some sequences that advance together; their pages alternate.
struct SequencesInStep {
  int64_t sequences = 1;
  int64_t longest = 64;
  int64_t page_size = 4;

  StateCapacity capacity() const {
    return {.page_size = page_size,
            .pages = 1 + sequences * ((longest + page_size - 1) / page_size),
            .slots = 1 + sequences};
  }

  /// Tokens [first, first + length) of each sequence, sequence by sequence.
  std::shared_ptr<const GenerationBatch> step(int64_t first, int64_t length) const {
    auto batch = std::make_shared<GenerationBatch>();
    batch->page_size = page_size;
    const at::Tensor sequence_R = at::arange(sequences, at::kLong);
    const auto places = [&](int64_t sequence, int64_t begin, int64_t count) {
      const at::Tensor token = at::arange(begin, begin + count, at::kLong);
      const at::Tensor page = 1 + sequence + at::floor_divide(token, page_size) * sequences;
      return page * page_size + token.remainder(page_size);
    };
    std::vector<at::Tensor> added;
    for (int64_t i = 0; i < sequences; ++i) {
      added.push_back(places(i, first, length));
      const int64_t end = first + length;
      batch->rows.push_back({.first_token = i * length,
                             .tokens = length,
                             .sequence = {.length = end, .places_L = places(i, 0, end)}});
    }
    batch->places_T = at::cat(added);
    batch->decode_rows = length == 1 ? sequences : 0;
    batch->slot_R = 1 + sequence_R;
    batch->first_R = sequence_R * length;
    batch->last_R = batch->first_R + (length - 1);
    return batch;
  }
};

/// [S, B] as the tokens of a step, [B S, 1].
inline at::Tensor by_sequence(const at::Tensor& x_SB) {
  return x_SB.transpose(0, 1).flatten(0, 1).unsqueeze(1);
}

}  // namespace teratron
