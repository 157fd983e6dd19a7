// How a rank's part of a tensor lies in the global one. Every cut (by dimension, by segments, with padding, a
// flat range of the local tensor as a distributed optimizer owns it) becomes a sorted list of runs of global
// row-major indices. A local tensor in row-major order visits its global indices in increasing order, so that
// resharding is nothing but the intersection of sorted lists.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/base/shard.h"

namespace teratron {

/// `length` neighbours in the global tensor, which are neighbours in the local one too.
struct Run {
  int64_t global = 0;
  int64_t local = 0;  // element offset, counted from the start of the flat range
  int64_t length = 0;
  bool operator==(const Run&) const = default;
};

/// Elements of the padded local tensor.
int64_t local_numel(const Shard& shard);

/// The runs of elements [flat_begin, flat_end) of the flattened local tensor, sorted, longest possible.
/// Padding belongs to no run.
std::vector<Run> runs_of(const Shard& shard, int64_t flat_begin, int64_t flat_end);

int64_t total_length(const std::vector<Run>& runs);

/// What two parts of one tensor share: `local` counts in a, `other` in b.
struct CommonRun {
  int64_t local = 0;
  int64_t other = 0;
  int64_t length = 0;
  bool operator==(const CommonRun&) const = default;
};
std::vector<CommonRun> intersect(const std::vector<Run>& a, const std::vector<Run>& b);

/// What is left of `runs` outside `covered` (sorted, disjoint; only its global indices count).
std::vector<Run> subtract(const std::vector<Run>& runs, const std::vector<Run>& covered);

/// The union of two disjoint sorted lists, by global index; `local` loses its meaning.
std::vector<Run> merge_disjoint(const std::vector<Run>& a, const std::vector<Run>& b);

}  // namespace teratron
