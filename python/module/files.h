// Checkpoints for Python.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "teratron/ckpt/checkpoint_source.h"

namespace teratron::python {

class CheckpointFile {
 public:
  /// A folder of --save or one of its iter_* folders. UserError(checkpoint).
  CheckpointFile(const std::string& folder, std::optional<int64_t> iteration);

  const CheckpointInfo& info() const { return reader_->info(); }
  /// The whole tensor. KeyError in Python (std::out_of_range) if there is none.
  at::Tensor read(const std::string& name) const;
  const TensorInfo& tensor(const std::string& name) const;
  int64_t verify() const;

 private:
  std::unique_ptr<CheckpointReader> reader_;
};

}  // namespace teratron::python
