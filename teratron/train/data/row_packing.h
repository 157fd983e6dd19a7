// Removes the padding of a micro-batch: its samples one after the other as one row [T, 1]
// (nn/tokens/packed_rows.h), for the losses and gradients of the rows with padding. Samples, batch sizes
// and the data that a run has consumed stay as they are.
#pragma once

#include <vector>

#include "teratron/data/batch.h"
#include "teratron/models/model.h"

namespace teratron {

struct RowPacking {
  std::vector<int64_t> lengths;  // of the samples: tokens before the padding, at least 1
  int64_t row = 0;               // S
  int64_t multiple = 1;          // of which T is one, as far as there is padding to fill it up
};

/// Such that T has few values, in which the allocator finds its blocks again, is cut evenly over the
/// tensor-parallel ranks and fits FP8's GEMMs, while less than 2 % of the rows is left of the padding.
int64_t packing_multiple(int64_t row, int64_t samples, int64_t tensor_parallel_size);

/// The micro-batch with packed rows. `schema` lists its columns; cu_seqlens has a segment of each sample and
/// one of its padding. The same micro-batch if no padding can be removed.
MicroBatch without_padding(const MicroBatch& batch, const BatchSchema& schema, const RowPacking& packing);

}  // namespace teratron
