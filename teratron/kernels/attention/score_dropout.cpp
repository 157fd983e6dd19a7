#include "teratron/kernels/attention/score_dropout.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/pointwise/dropout.h"

namespace teratron {

ScoreDropout make_score_dropout(const Dropout& dropout, const at::Tensor& x, int64_t rows, int64_t keys) {
  TERATRON_ASSERT(dropout.p >= 0 && dropout.p <= 1, "dropout probability {}", dropout.p);
  const GlobalRows& where = dropout.where;
  if (where.rows.defined()) {
    TERATRON_ASSERT(where.rows.scalar_type() == at::kLong && where.rows.is_contiguous() &&
                    where.rows.numel() == rows && where.rows.device() == x.device());
  }
  TERATRON_ASSERT(where.first_column == 0 && (where.columns == 0 || where.columns == keys),
                  "scores have all keys of a row");
  const int64_t threshold = std::llround(dropout.p * 0x1p16);
  return {.key = dropout.key,
          .threshold = static_cast<uint32_t>(std::min<int64_t>(threshold, 0xFFFF)) << 16,
          .scale = threshold < 0x10000 ? 1 / (1 - static_cast<double>(threshold) * 0x1p-16) : 0,
          .rows = where.rows.defined() ? where.rows.const_data_ptr<int64_t>() : nullptr,
          .first_row = where.first_row,
          .draws = (keys + 31) / 32 * 4};
}

namespace {

template <typename T>
void drop_row(const ScoreDropout& dropout, uint64_t start, const T* x, T* y, int64_t keys) {
  using A = Accumulator<T>;
  const A scale = static_cast<A>(dropout.scale);
  for (int first = 0; first < keys; first += 32) {
    PhiloxWords words[4];
    for (int t = 0; t < 4; ++t) words[t] = dropout.words(start, first / 8 + t);
    const int64_t end = std::min<int64_t>(first + 32, keys);
    for (int64_t j = first; j < end; ++j) {
      const bool kept = dropout.keeps(words[j % 8 / 2].word[j % 32 / 8], static_cast<int>(j % 2));
      y[j] = kept ? static_cast<T>(static_cast<A>(x[j]) * scale) : T(0);
    }
  }
}

}  // namespace

at::Tensor score_dropout_cpu(const at::Tensor& scores, const Dropout& dropout) {
  require_float(scores, "scores");
  const RowShape rows = rows_of(scores);
  const ScoreDropout mask = make_score_dropout(dropout, scores, rows.count, rows.width);
  at::Tensor y = at::empty_like(scores);
  with_float_type(scores, [&]<typename T>(T) {
    const T* const from = scores.const_data_ptr<T>();
    T* const to = y.mutable_data_ptr<T>();
    at::parallel_for(0, rows.count, std::max<int64_t>(1, 8192 / rows.width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        drop_row(mask, mask.row_start(row), from + row * rows.width, to + row * rows.width, rows.width);
      }
    });
  });
  return y;
}

}  // namespace teratron
