#include "teratron/ckpt/index_ranges.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

namespace {

void append(std::vector<Run>& runs, const Run& run) {
  if (!runs.empty()) {
    Run& last = runs.back();
    if (last.global + last.length == run.global && last.local + last.length == run.local) {
      last.length += run.length;
      return;
    }
  }
  runs.push_back(run);
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

std::vector<Run> runs_of(const Shard& shard, int64_t flat_begin, int64_t flat_end) {
  TERATRON_ASSERT(flat_begin >= 0 && flat_begin <= flat_end && flat_end <= local_numel(shard),
                  "range {} - {}", flat_begin, flat_end);
  std::vector<Run> runs;
  if (flat_begin == flat_end) return runs;
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
      append(runs, {global, begin - flat_begin, end - begin});
    }
  }
  return runs;
}

int64_t total_length(const std::vector<Run>& runs) {
  int64_t total = 0;
  for (const Run& run : runs) total += run.length;
  return total;
}

std::vector<CommonRun> intersect(const std::vector<Run>& a, const std::vector<Run>& b) {
  std::vector<CommonRun> common;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const int64_t begin = std::max(a[i].global, b[j].global);
    const int64_t a_end = a[i].global + a[i].length;
    const int64_t b_end = b[j].global + b[j].length;
    const int64_t end = std::min(a_end, b_end);
    if (begin < end) {
      const CommonRun run{a[i].local + begin - a[i].global, b[j].local + begin - b[j].global, end - begin};
      CommonRun* const last = common.empty() ? nullptr : &common.back();
      if (last != nullptr && last->local + last->length == run.local &&
          last->other + last->length == run.other) {
        last->length += run.length;
      } else {
        common.push_back(run);
      }
    }
    if (a_end <= b_end) ++i;
    if (b_end <= a_end) ++j;
  }
  return common;
}

std::vector<Run> subtract(const std::vector<Run>& runs, const std::vector<Run>& covered) {
  std::vector<Run> rest;
  size_t first = 0;
  for (const Run& run : runs) {
    const int64_t end = run.global + run.length;
    int64_t at = run.global;
    while (first < covered.size() && covered[first].global + covered[first].length <= at) ++first;
    for (size_t i = first; i < covered.size() && covered[i].global < end; ++i) {
      if (covered[i].global > at) append(rest, {at, run.local + at - run.global, covered[i].global - at});
      at = std::max(at, covered[i].global + covered[i].length);
    }
    if (at < end) append(rest, {at, run.local + at - run.global, end - at});
  }
  return rest;
}

std::vector<Run> merge_disjoint(const std::vector<Run>& a, const std::vector<Run>& b) {
  std::vector<Run> all(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), all.begin(),
             [](const Run& x, const Run& y) { return x.global < y.global; });
  std::vector<Run> merged;
  for (const Run& run : all) append(merged, {run.global, run.global, run.length});
  return merged;
}

}  // namespace teratron
