// How a global tensor is cut over the ranks. One struct serves gradient reduction, the optimizer's partition,
// checkpoints, Hugging Face's name maps and the ckpt tools; nothing keeps a second description.
#pragma once

#include <cstdint>
#include <vector>

namespace teratron {

/// A rectangle of a global tensor: start and size per dimension.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> size;
  bool operator==(const Box&) const = default;
};

/// A rectangle of the global tensor and where it starts along the cut dimension of the local one.
struct Piece {
  Box global;
  int64_t local_start = 0;
  bool operator==(const Piece&) const = default;
};

/// The cut of one tensor along `dim` into `parts` equal parts, of which this rank holds part `index`.
///
/// `segments` are lengths along `dim` that are cut one by one: gate|up of SwiGLU is {ffn, ffn}, so that every
/// rank holds its share of the gate rows followed by its share of the up rows. An ordinary cut has the one
/// segment {global_shape[dim]}. dim = -1: not cut, every rank holds the whole tensor.
///
/// `padded` is the length along `dim` that is really cut, where it is more than the logical one: a vocabulary of
/// 50257 padded to 50432. Only the logical rows are part of the global tensor, so that checkpoints do not
/// depend on the padding (it needs a single segment).
struct Shard {
  std::vector<int64_t> global_shape;  // logical shape, without padding
  int64_t dim = -1;
  std::vector<int64_t> segments = {};
  int64_t padded = 0;
  int64_t parts = 1;
  int64_t index = 0;

  static Shard replicated(std::vector<int64_t> global_shape);
  static Shard cut(std::vector<int64_t> global_shape, int64_t dim, int64_t parts, int64_t index);
  static Shard cut_padded(std::vector<int64_t> global_shape, int64_t dim, int64_t padded, int64_t parts,
                          int64_t index);
  static Shard cut_segments(std::vector<int64_t> global_shape, int64_t dim, std::vector<int64_t> segments,
                            int64_t parts, int64_t index);

  std::vector<int64_t> local_shape() const;
  /// What this rank holds; nothing where its part is padding alone.
  std::vector<Piece> pieces() const;
};

}  // namespace teratron
