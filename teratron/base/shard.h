// Sharding of a global tensor over ranks: the single description used by gradient reduction, the distributed
// optimizer, checkpoints, Hugging Face conversion and the ckpt tools.
#pragma once

#include <cstdint>
#include <vector>

namespace teratron {

/// A rectangular region of a tensor: start and size per dimension.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> size;
  bool operator==(const Box&) const = default;
};

/// A region of the global tensor and its start along the sharded dimension of the local tensor.
struct Piece {
  Box global;
  int64_t local_start = 0;
  bool operator==(const Piece&) const = default;
};

/// Rows of a group that several ranks divide: they divide the first and all hold the others, as the query
/// heads of a key/value head and the head itself.
struct GroupRows {
  int64_t divided = 0;
  int64_t shared = 0;
  int64_t size() const { return divided + shared; }
};

/// A tensor split along `dim` into `parts` equal parts, of which this rank holds part `index`. dim = -1:
/// replicated.
///
/// `segments` are lengths along `dim` that are split separately. SwiGLU's gate|up is {ffn, ffn}: every rank
/// holds its part of the gate rows followed by its part of the up rows. Otherwise there is one segment
/// {global_shape[dim]}.
///
/// `padded` is the padded length along `dim`, for example a vocabulary of 50257 padded to 50432 (single
/// segment only). The padding is not part of the global tensor, so checkpoints do not depend on it.
///
/// With `sharers` > 1 the dimension is parts / sharers groups of GroupRows{segments[0], segments[1]}, each
/// divided over `sharers` consecutive parts: a part has its rows of the divided ones, then all shared ones.
/// The shared rows are the only elements that several parts hold.
struct Shard {
  std::vector<int64_t> global_shape;  // without padding
  int64_t dim = -1;
  std::vector<int64_t> segments = {};
  int64_t padded = 0;
  int64_t parts = 1;
  int64_t index = 0;
  int64_t sharers = 1;

  static Shard replicated(std::vector<int64_t> global_shape);
  static Shard split(std::vector<int64_t> global_shape, int64_t dim, int64_t parts, int64_t index);
  static Shard split_padded(std::vector<int64_t> global_shape, int64_t dim, int64_t padded, int64_t parts,
                            int64_t index);
  static Shard split_segments(std::vector<int64_t> global_shape, int64_t dim, std::vector<int64_t> segments,
                              int64_t parts, int64_t index);
  /// Along dimension 0: fewer groups than parts, which must divide their number.
  static Shard split_groups(std::vector<int64_t> global_shape, const GroupRows& group, int64_t parts,
                            int64_t index);

  std::vector<int64_t> local_shape() const;
  /// The regions that this rank holds; empty if its part is padding only.
  std::vector<Piece> pieces() const;
  /// Whether this part's copy of the shared rows is the one that sums over the model count.
  bool counts_shared() const { return index % sharers == 0; }
  /// Elements of the shared rows, which are the last of the flattened local tensor; 0 if there are none.
  int64_t shared_numel() const;
};

}  // namespace teratron
