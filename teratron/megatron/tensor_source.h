// Where the elements of a tensor come from: files, parts of which are joined as they are read, so that a
// tensor is never in memory as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/pickle/torch_file.h"

namespace teratron {

class TensorSource {
 public:
  TensorSource(Dtype dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {}
  virtual ~TensorSource() = default;
  Dtype dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const;
  /// Elements [begin, end) of the row-major tensor. Thread-safe.
  virtual void read(int64_t begin, int64_t end, char* out) const = 0;

 private:
  Dtype dtype_;
  std::vector<int64_t> shape_;
};

using TensorSourcePtr = std::shared_ptr<const TensorSource>;

TensorSourcePtr tensor_of_file(std::shared_ptr<const TorchFile> file, PickledTensor tensor);
/// A flat part of `source`, elements [begin, ...), as a tensor of `shape`.
TensorSourcePtr slice_of(TensorSourcePtr source, int64_t begin, std::vector<int64_t> shape);
/// `parts` one after the other, as a tensor of `shape`.
TensorSourcePtr concatenated(std::vector<TensorSourcePtr> parts, std::vector<int64_t> shape);

/// `matrix`, of two dimensions, transposed.
TensorSourcePtr transposed(TensorSourcePtr matrix);

/// As a whole.
std::vector<char> read_all(const TensorSource& source);

}  // namespace teratron
