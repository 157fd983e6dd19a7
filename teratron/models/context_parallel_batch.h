// A rank's part of a whole micro-batch under context parallelism. (In training each column is cut as it is
// read: train/data/batch_source.h.)
#pragma once

#include "teratron/models/model.h"

namespace teratron {

/// The tokens of this rank in every tensor [S, B, ...] of the batch, which has sequence_index; or of one with
/// a source, which has encoder_index and decoder_index. Documents are cut one by one where cu_seqlens has
/// them. Requires S % (2 * group.size) = 0.
MicroBatch cut_over_context(const MicroBatch& whole, const Group& group);

}  // namespace teratron
