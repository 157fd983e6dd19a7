// One of our tensors from the parts of the tensor ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/megatron/names.h"
#include "teratron/megatron/tensor_source.h"

namespace teratron {

/// The order of the rows in a part.
enum class MegatronRows : uint8_t {
  as_stored,
  by_split,     // version 0: [splits, heads, channels]; ours: [heads, splits, channels]
  splits_last,  // version 1: [heads, channels, splits]
  segmented,    // segments in each part; ours: all of the first, then all of the next
};

struct MegatronPart {
  MegatronSplit split = MegatronSplit::none;
  MegatronRows rows = MegatronRows::as_stored;
  int64_t splits = 3;                  // of QKV; 2 of keys and values
  int64_t channels = 1;                // of a head
  std::vector<int64_t> shape = {};     // of one part
  std::vector<int64_t> segments = {};  // rows of each in all parts
};

/// The parts of the tensor ranks, each of part.shape, joined.
TensorSourcePtr merged(const MegatronPart& part, std::vector<TensorSourcePtr> ranks);

/// The shape of the joined tensor.
std::vector<int64_t> merged_shape(const MegatronPart& part, int64_t ranks);

}  // namespace teratron
