// Where a rank's part of a tensor is in the global one. Every way to split a tensor (along a dimension, by
// segments, padded, a flat range of the local tensor as a distributed optimizer owns it) becomes a sorted
// list of ranges of global row-major indices. A row-major local tensor visits its global indices in
// increasing order, so resharding is the intersection of sorted lists.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/base/shard.h"

namespace teratron {

/// `length` elements that are contiguous in the global and in the local tensor.
struct IndexRange {
  int64_t global = 0;
  int64_t local = 0;  // element offset from the start of the flat range
  int64_t length = 0;
  bool operator==(const IndexRange&) const = default;
};

/// Elements of the padded local tensor.
int64_t local_numel(const Shard& shard);

/// The ranges of elements [flat_begin, flat_end) of the flattened local tensor, sorted and as long as
/// possible, without padding.
std::vector<IndexRange> index_ranges(const Shard& shard, int64_t flat_begin, int64_t flat_end);

int64_t total_length(const std::vector<IndexRange>& ranges);

/// The first global index that the ranges cover not at all or twice: the number of elements if they cover all
/// once.
int64_t covered_prefix(std::vector<IndexRange> ranges);

/// What two parts of one tensor share: `local` is an offset in a, `other` in b.
struct Overlap {
  int64_t local = 0;
  int64_t other = 0;
  int64_t length = 0;
  bool operator==(const Overlap&) const = default;
};
std::vector<Overlap> intersect(const std::vector<IndexRange>& a, const std::vector<IndexRange>& b);

/// `ranges` without the global indices in `covered` (sorted, disjoint).
std::vector<IndexRange> subtract(const std::vector<IndexRange>& ranges,
                                 const std::vector<IndexRange>& covered);

/// The union of two disjoint sorted lists by global index; `local` has no meaning in it.
std::vector<IndexRange> merge_disjoint(const std::vector<IndexRange>& a, const std::vector<IndexRange>& b);

}  // namespace teratron
