#include "teratron/ckpt/index_ranges.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// Appends, or extends the last range. `index` is the member that is contiguous in addition to `local`.
template <typename Range>
void append(std::vector<Range>& ranges, const Range& range, int64_t Range::* index) {
  Range* const last = ranges.empty() ? nullptr : &ranges.back();
  if (last && last->*index + last->length == range.*index && last->local + last->length == range.local) {
    last->length += range.length;
  } else {
    ranges.push_back(range);
  }
}

void append(std::vector<IndexRange>& ranges, const IndexRange& range) {
  append(ranges, range, &IndexRange::global);
}

int64_t product(const std::vector<int64_t>& sizes, size_t begin, size_t end) {
  int64_t result = 1;
  for (size_t i = begin; i < end; ++i) result *= sizes[i];
  return result;
}

}  // namespace

int64_t local_numel(const Shard& shard) {
  const std::vector<int64_t> shape = shard.local_shape();
  return product(shape, 0, shape.size());
}

std::vector<IndexRange> index_ranges(const Shard& shard, int64_t flat_begin, int64_t flat_end) {
  TERATRON_ASSERT(flat_begin >= 0 && flat_begin <= flat_end && flat_end <= local_numel(shard),
                  "range {} - {}", flat_begin, flat_end);
  std::vector<IndexRange> ranges;
  if (flat_begin == flat_end) return ranges;
  if (shard.dim < 0) return {{flat_begin, 0, flat_end - flat_begin}};
  const auto dim = static_cast<size_t>(shard.dim);
  const int64_t inner = product(shard.global_shape, dim + 1, shard.global_shape.size());
  const int64_t local_row = shard.padded / shard.parts * inner;
  const int64_t global_row = shard.global_shape[dim] * inner;
  const std::vector<Piece> pieces = shard.pieces();
  const int64_t last_row = (flat_end - 1) / local_row;
  for (int64_t row = flat_begin / local_row; row <= last_row; ++row) {
    for (const Piece& piece : pieces) {
      const int64_t local = row * local_row + piece.local_start * inner;
      const int64_t begin = std::max(local, flat_begin);
      const int64_t end = std::min(local + piece.global.size[dim] * inner, flat_end);
      if (begin >= end) continue;
      const int64_t global = row * global_row + piece.global.start[dim] * inner + (begin - local);
      append(ranges, {global, begin - flat_begin, end - begin});
    }
  }
  return ranges;
}

int64_t total_length(const std::vector<IndexRange>& ranges) {
  int64_t total = 0;
  for (const IndexRange& range : ranges) total += range.length;
  return total;
}

int64_t covered_prefix(std::vector<IndexRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const IndexRange& a, const IndexRange& b) { return a.global < b.global; });
  int64_t end = 0;
  for (const IndexRange& range : ranges) {
    if (range.global != end) break;
    end += range.length;
  }
  return end;
}

std::vector<Overlap> intersect(const std::vector<IndexRange>& a, const std::vector<IndexRange>& b) {
  std::vector<Overlap> common;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const int64_t begin = std::max(a[i].global, b[j].global);
    const int64_t a_end = a[i].global + a[i].length;
    const int64_t b_end = b[j].global + b[j].length;
    const int64_t end = std::min(a_end, b_end);
    if (begin < end) {
      append(common, {a[i].local + begin - a[i].global, b[j].local + begin - b[j].global, end - begin},
             &Overlap::other);
    }
    if (a_end <= b_end) ++i;
    if (b_end <= a_end) ++j;
  }
  return common;
}

std::vector<IndexRange> subtract(const std::vector<IndexRange>& ranges,
                                 const std::vector<IndexRange>& covered) {
  std::vector<IndexRange> rest;
  size_t first = 0;
  for (const IndexRange& range : ranges) {
    const int64_t end = range.global + range.length;
    int64_t at = range.global;
    while (first < covered.size() && covered[first].global + covered[first].length <= at) ++first;
    for (size_t i = first; i < covered.size() && covered[i].global < end; ++i) {
      if (covered[i].global > at) append(rest, {at, range.local + at - range.global, covered[i].global - at});
      at = std::max(at, covered[i].global + covered[i].length);
    }
    if (at < end) append(rest, {at, range.local + at - range.global, end - at});
  }
  return rest;
}

std::vector<IndexRange> merge_disjoint(const std::vector<IndexRange>& a, const std::vector<IndexRange>& b) {
  std::vector<IndexRange> all(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), all.begin(),
             [](const IndexRange& x, const IndexRange& y) { return x.global < y.global; });
  std::vector<IndexRange> merged;
  for (const IndexRange& range : all) append(merged, {range.global, range.global, range.length});
  return merged;
}

}  // namespace teratron
