#include "teratron/megatron/merge/merge.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

class Merged final : public TensorSource {
 public:
  Merged(MegatronPart part, std::vector<TensorSourcePtr> ranks)
      : TensorSource(ranks.at(0)->dtype(), merged_shape(part, static_cast<int64_t>(ranks.size()))),
        part_(std::move(part)),
        ranks_(std::move(ranks)) {}

  void read(int64_t begin, int64_t end, char* out) const override {
    part_.split == MegatronSplit::columns ? read_columns(begin, end, out) : read_rows(begin, end, out);
  }

 private:
  struct Place {
    size_t rank;
    int64_t row;
    bool operator==(const Place&) const = default;
  };
  // Where row `row` of the joined tensor is.
  Place place_of(int64_t row) const {
    const auto ranks = static_cast<int64_t>(ranks_.size());
    const int64_t rows = part_.shape[0];
    if (part_.rows != MegatronRows::segmented)
      return {static_cast<size_t>(row / rows), stored_row(part_, row % rows)};
    int64_t within = row, first = 0;  // in the segment; of it in a part
    size_t segment = 0;
    for (; within >= part_.segments[segment]; ++segment) {
      within -= part_.segments[segment];
      first += part_.segments[segment] / ranks;
    }
    const int64_t own = part_.segments[segment] / ranks;
    return {static_cast<size_t>(within / own), first + within % own};
  }

  // Rows that follow each other in a part are read at once.
  void read_rows(int64_t begin, int64_t end, char* out) const {
    const int64_t columns = numel() / std::max<int64_t>(shape()[0], 1);
    while (begin < end) {
      const int64_t row = begin / columns, skipped = begin % columns;
      const Place first = place_of(row);
      int64_t rows = 1;
      while ((row + rows) * columns < end && place_of(row + rows) == Place{first.rank, first.row + rows})
        ++rows;
      const int64_t length = std::min(end, (row + rows) * columns) - begin;
      const int64_t from = first.row * columns + skipped;
      ranks_[first.rank]->read(from, from + length, out);
      out += length * size_of(dtype());
      begin += length;
    }
  }

  // Each rank's part of the rows at once, then element by element where they belong.
  void read_columns(int64_t begin, int64_t end, char* out) const {
    const int64_t part_columns = part_.shape[1], columns = shape()[1], element = size_of(dtype());
    const int64_t first = begin / columns, last = (end + columns - 1) / columns;
    std::vector<char> block(static_cast<size_t>((last - first) * part_columns * element));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank]->read(first * part_columns, last * part_columns, block.data());
      for (int64_t row = first; row < last; ++row) {
        const int64_t at = row * columns + static_cast<int64_t>(rank) * part_columns;
        const int64_t from = std::max(at, begin), to = std::min(at + part_columns, end);
        if (from >= to) continue;
        std::memcpy(out + (from - begin) * element,
                    block.data() + ((row - first) * part_columns + from - at) * element,
                    static_cast<size_t>((to - from) * element));
      }
    }
  }

  MegatronPart part_;
  std::vector<TensorSourcePtr> ranks_;
};

}  // namespace

std::vector<int64_t> merged_shape(const MegatronPart& part, int64_t ranks) {
  std::vector<int64_t> shape = part.shape;
  if (part.split != MegatronSplit::none) shape[part.split == MegatronSplit::rows ? 0 : 1] *= ranks;
  return shape;
}

TensorSourcePtr merged(const MegatronPart& part, std::vector<TensorSourcePtr> ranks) {
  if (part.split == MegatronSplit::none) return ranks.at(0);
  if (ranks.size() == 1 && (part.rows == MegatronRows::as_stored || part.rows == MegatronRows::segmented))
    return ranks[0];
  return std::make_shared<Merged>(part, std::move(ranks));
}

}  // namespace teratron
