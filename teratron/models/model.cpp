#include "teratron/models/model.h"

#include <ATen/ATen.h>

namespace teratron {

at::Tensor sample_numbers(const MicroBatch& batch) {
  if (batch.samples_B.defined()) return batch.samples_B;
  const int64_t end = batch.first_sample + batch.positions_SB.size(1);
  return at::arange(batch.first_sample, end, batch.positions_SB.options().dtype(at::kLong));
}

}  // namespace teratron
