// Samples between Python's tensors and the columns of a batch (data/batch.h).
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "python/module/held.h"
#include <ATen/ATen.h>

#include "teratron/data/dataset.h"
#include "teratron/models/model.h"
#include "teratron/train/data/batch_source.h"

namespace teratron::python {

using Tensors = std::map<std::string, at::Tensor, std::less<>>;

/// The samples of a step as Python has them: sequence columns [S, B, ...], others [B, ...], on the host.
Tensors stacked(const std::vector<Batch>& batches);
/// What an item of a step must be.
struct ItemShape {
  int64_t micro_batch_size;
  int64_t micro_batches;
  int64_t vocabulary;
};
/// The micro-batches of an item. A missing loss_mask is all ones, missing segments are whole samples.
/// UserError(data) for other missing columns, for other shapes and for ids that the vocabulary does not have.
std::vector<Batch> unstacked(const Tensors& columns, const BatchSchema& schema, const ItemShape& item);

/// An object of Python with __len__ and get(i) -> {column: tensor}, as a dataset.
class PythonDataset final : public Dataset {
 public:
  /// With the GIL. `vocabulary`: ids of tokens are below it.
  PythonDataset(Held object, BatchSchema schema, std::string split,
                int64_t vocabulary = std::numeric_limits<int64_t>::max());

  int64_t size() const override { return size_; }
  /// UserError(data) that names the sample for whatever the object raises.
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;
  /// Whether this thread is in a call of a dataset.
  static bool is_called();

 private:
  Held object_;
  BatchSchema schema_;
  std::string split_;
  int64_t vocabulary_;
  int64_t size_;
};

}  // namespace teratron::python
