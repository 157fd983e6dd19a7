#include "teratron/megatron/merge.h"

#include <cstring>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// Which row of a part is row `row` of the same part in our order.
int64_t stored_row(const MegatronPart& part, int64_t row) {
  const int64_t channels = part.channels, splits = part.splits;
  const int64_t head = row / (splits * channels), split = row / channels % splits, channel = row % channels;
  const int64_t heads = part.shape[0] / (splits * channels);
  if (part.rows == MegatronRows::by_split) return (split * heads + head) * channels + channel;
  if (part.rows == MegatronRows::splits_last) return (head * channels + channel) * splits + split;
  return row;
}

// Row `row` of `rank`'s part in the joined tensor, once its part is in our order.
int64_t joined_row(const MegatronPart& part, int64_t rank, int64_t row, int64_t ranks) {
  const int64_t rows = part.shape[0], half = rows / 2;
  if (part.rows != MegatronRows::gated) return rank * rows + row;
  return (row < half ? 0 : half * ranks) + rank * half + row % half;
}

}  // namespace

std::vector<int64_t> merged_shape(const MegatronPart& part, int64_t ranks) {
  std::vector<int64_t> shape = part.shape;
  if (part.split != MegatronSplit::none) shape[part.split == MegatronSplit::rows ? 0 : 1] *= ranks;
  return shape;
}

std::vector<char> merge_parts(const MegatronPart& part, const std::vector<std::vector<char>>& parts,
                              int64_t element) {
  if (part.split == MegatronSplit::none) return parts[0];
  const auto ranks = static_cast<int64_t>(parts.size());
  const int64_t rows = part.shape[0];
  const int64_t row_bytes = (part.shape.size() > 1 ? part.shape[1] : 1) * element;
  std::vector<char> joined(parts[0].size() * parts.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const char* const from = parts[static_cast<size_t>(rank)].data();
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t to =
          part.split == MegatronSplit::rows ? joined_row(part, rank, row, ranks) : row * ranks + rank;
      std::memcpy(joined.data() + to * row_bytes, from + stored_row(part, row) * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
  return joined;
}

}  // namespace teratron
