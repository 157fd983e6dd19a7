#include "teratron/base/shard.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "teratron/base/error.h"

namespace teratron {

Shard Shard::replicated(std::vector<int64_t> global_shape) {
  return Shard{.global_shape = std::move(global_shape)};
}

Shard Shard::split(std::vector<int64_t> global_shape, int64_t dim, int64_t parts, int64_t index) {
  std::vector<int64_t> segments = {global_shape.at(dim)};
  return split_segments(std::move(global_shape), dim, std::move(segments), parts, index);
}

Shard Shard::split_padded(std::vector<int64_t> global_shape, int64_t dim, int64_t padded, int64_t parts,
                          int64_t index) {
  TERATRON_ASSERT(padded >= global_shape.at(dim) && padded % parts == 0, "{} padded to {} over {} ranks",
                  global_shape.at(dim), padded, parts);
  TERATRON_ASSERT(index >= 0 && index < parts, "part {} of {}", index, parts);
  std::vector<int64_t> segments = {global_shape.at(dim)};
  return Shard{.global_shape = std::move(global_shape),
               .dim = dim,
               .segments = std::move(segments),
               .padded = padded,
               .parts = parts,
               .index = index};
}

Shard Shard::split_segments(std::vector<int64_t> global_shape, int64_t dim, std::vector<int64_t> segments,
                            int64_t parts, int64_t index) {
  const int64_t total = std::accumulate(segments.begin(), segments.end(), int64_t{0});
  TERATRON_ASSERT(total == global_shape.at(dim), "segments sum to {}, dimension is {}", total,
                  global_shape.at(dim));
  TERATRON_ASSERT(index >= 0 && index < parts, "part {} of {}", index, parts);
  for (const int64_t segment : segments) {
    TERATRON_ASSERT(segment % parts == 0, "segment of {} over {} ranks", segment, parts);
  }
  return Shard{.global_shape = std::move(global_shape),
               .dim = dim,
               .segments = std::move(segments),
               .padded = total,
               .parts = parts,
               .index = index};
}

Shard Shard::split_groups(std::vector<int64_t> global_shape, const GroupRows& group, int64_t parts,
                          int64_t index) {
  const int64_t groups = global_shape.at(0) / group.size();
  TERATRON_ASSERT(groups * group.size() == global_shape[0] && groups < parts && parts % groups == 0,
                  "{} rows in groups of {} over {} ranks", global_shape[0], group.size(), parts);
  TERATRON_ASSERT(index >= 0 && index < parts, "part {} of {}", index, parts);
  const int64_t sharers = parts / groups;
  TERATRON_ASSERT(group.divided % sharers == 0, "{} rows over {} ranks", group.divided, sharers);
  return Shard{.global_shape = std::move(global_shape),
               .dim = 0,
               .segments = {group.divided, group.shared},
               .padded = (group.divided / sharers + group.shared) * parts,
               .parts = parts,
               .index = index,
               .sharers = sharers};
}

std::vector<int64_t> Shard::local_shape() const {
  std::vector<int64_t> shape = global_shape;
  if (dim >= 0) shape[dim] = padded / parts;
  return shape;
}

int64_t Shard::shared_numel() const {
  if (sharers == 1) return 0;
  return std::accumulate(global_shape.begin() + 1, global_shape.end(), segments[1], std::multiplies<>());
}

std::vector<Piece> Shard::pieces() const {
  const Box whole{std::vector<int64_t>(global_shape.size(), 0), global_shape};
  if (dim < 0) return {{whole, 0}};
  std::vector<Piece> pieces;
  if (sharers > 1) {
    const GroupRows group{segments[0], segments[1]};
    const int64_t first = index / sharers * group.size(), mine = group.divided / sharers;
    const auto add = [&](int64_t start, int64_t size, int64_t local_start) {
      Piece piece{whole, local_start};
      piece.global.start[0] = start;
      piece.global.size[0] = size;
      if (size > 0) pieces.push_back(std::move(piece));
    };
    add(first + index % sharers * mine, mine, 0);
    add(first + group.divided, group.shared, mine);
    return pieces;
  }
  int64_t segment_start = 0;
  int64_t local_start = 0;
  for (const int64_t segment : segments) {
    const int64_t length = (segments.size() == 1 ? padded : segment) / parts;
    const int64_t start = segment_start + index * length;
    Piece piece{whole, local_start};
    piece.global.start[dim] = start;
    piece.global.size[dim] = std::min(length, segment_start + segment - start);
    if (piece.global.size[dim] > 0) pieces.push_back(std::move(piece));
    segment_start += segment;
    local_start += length;
  }
  return pieces;
}

}  // namespace teratron
