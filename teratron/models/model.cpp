#include "teratron/models/model.h"

#include <ATen/ATen.h>

namespace teratron {

at::Tensor sample_ids(const MicroBatch& batch) {
  if (batch.sample_ids_B.defined()) return batch.sample_ids_B;
  return at::arange(batch.positions_SB.size(1), batch.positions_SB.options().dtype(at::kLong));
}

}  // namespace teratron
