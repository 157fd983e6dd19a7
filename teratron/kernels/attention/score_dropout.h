// Dropout of attention probabilities: which elements are dropped, for host and device. Internal to kernels.
//
// As in kernels/pointwise/dropout.h, the mask depends only on the key, the global id of a row of scores
// (sample, head, query) and the index of the key. But a draw of Philox, with 7 rounds, serves 8 elements of a
// row with 16 bits each. These are the elements that a thread holds of 32 keys in the accumulators of the
// tensor core's m16n8 products, so that a fused kernel draws each number once:
//
//   key j = 32 b + 8 n + 2 t + c  (n, t < 4, c < 2):   half c of word n of draw 4 b + t of the row
//
// The element is kept if the half is >= p * 2^16, rounded, and then divided by the fraction that is kept.
#pragma once

#include "teratron/base/philox.h"

namespace at {
class Tensor;
}

namespace teratron {

struct Dropout;

struct ScoreDropout {
  RandomKey key;
  uint32_t threshold = 0;  // p * 2^16 in the upper half; 0: all are kept
  double scale = 1;        // 1 / (1 - p) of this p; 0 if p = 1
  const int64_t* rows = nullptr;
  int64_t first_row = 0;
  int64_t draws = 0;  // of a row: 4 for each 32 keys

  /// The first draw of local row `row`.
  TERATRON_HOST_DEVICE uint64_t row_start(int64_t row) const {
    const int64_t global = rows != nullptr ? rows[row] : first_row + row;
    return static_cast<uint64_t>(global) * static_cast<uint64_t>(draws);
  }
  /// Draw 4 b + t of the row that starts at `row_start`.
  TERATRON_HOST_DEVICE PhiloxWords words(uint64_t row_start, int draw) const {
    return philox<7>(key, row_start + static_cast<uint32_t>(draw));
  }
  /// Whether half c of a word keeps its element.
  TERATRON_HOST_DEVICE bool keeps(uint32_t word, int c) const {
    return (c == 0 ? word << 16 : word) >= threshold;
  }
};

/// The draw of key j, relative to the row's first, and the word in it.
TERATRON_HOST_DEVICE int score_draw(int key) {
  return key / 32 * 4 + key % 8 / 2;
}
TERATRON_HOST_DEVICE int score_word(int key) {
  return key % 32 / 8;
}

/// Checks that `dropout` fits `rows` rows of scores on x's device. Points into dropout.where.rows.
ScoreDropout make_score_dropout(const Dropout& dropout, const at::Tensor& x, int64_t rows, int64_t keys);

/// mask * scores / (1 - p) of scores [.., Sk] on the CPU.
at::Tensor score_dropout_cpu(const at::Tensor& scores, const Dropout& dropout);

}  // namespace teratron
