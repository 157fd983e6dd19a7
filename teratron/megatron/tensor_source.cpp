#include "teratron/megatron/tensor_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

class FileTensor final : public TensorSource {
 public:
  FileTensor(std::shared_ptr<const TorchFile> file, PickledTensor tensor)
      : TensorSource(file->dtype_of(tensor), tensor.shape),
        file_(std::move(file)),
        tensor_(std::move(tensor)) {}
  void read(int64_t begin, int64_t end, char* out) const override { file_->read(tensor_, begin, end, out); }

 private:
  std::shared_ptr<const TorchFile> file_;
  PickledTensor tensor_;
};

class Slice final : public TensorSource {
 public:
  Slice(TensorSourcePtr source, int64_t begin, std::vector<int64_t> shape)
      : TensorSource(source->dtype(), std::move(shape)), source_(std::move(source)), begin_(begin) {
    TERATRON_ASSERT(begin >= 0 && numel() <= source_->numel() - begin, "{}", begin);
  }
  void read(int64_t begin, int64_t end, char* out) const override {
    source_->read(begin_ + begin, begin_ + end, out);
  }

 private:
  TensorSourcePtr source_;
  int64_t begin_;
};

class Concatenated final : public TensorSource {
 public:
  Concatenated(std::vector<TensorSourcePtr> parts, std::vector<int64_t> shape)
      : TensorSource(parts.at(0)->dtype(), std::move(shape)), parts_(std::move(parts)) {
    int64_t total = 0;
    for (const TensorSourcePtr& part : parts_) total += part->numel();
    TERATRON_ASSERT(total == numel(), "{} elements, not {}", total, numel());
  }
  void read(int64_t begin, int64_t end, char* out) const override {
    for (const TensorSourcePtr& part : parts_) {
      const int64_t size = part->numel(), from = std::clamp<int64_t>(begin, 0, size);
      const int64_t to = std::clamp<int64_t>(end, 0, size);
      if (from < to) {
        part->read(from, to, out);
        out += (to - from) * size_of(dtype());
      }
      begin -= size;
      end -= size;
    }
  }

 private:
  std::vector<TensorSourcePtr> parts_;
};

// Reads a piece of each row of the matrix: as many bytes as asked for, whatever the size of the matrix.
class Transposed final : public TensorSource {
 public:
  explicit Transposed(TensorSourcePtr matrix)
      : TensorSource(matrix->dtype(), {matrix->shape().at(1), matrix->shape().at(0)}),
        matrix_(std::move(matrix)) {}
  void read(int64_t begin, int64_t end, char* out) const override {
    if (begin >= end) return;
    const int64_t columns = shape()[1], element = size_of(dtype());
    const int64_t first = begin / columns, rows = (end - 1) / columns + 1 - first;
    std::vector<char> piece(static_cast<size_t>(rows * element));
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t from = column * shape()[0] + first;
      matrix_->read(from, from + rows, piece.data());
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = (first + row) * columns + column;
        if (at >= begin && at < end)
          std::memcpy(out + (at - begin) * element, piece.data() + row * element,
                      static_cast<size_t>(element));
      }
    }
  }

 private:
  TensorSourcePtr matrix_;
};

}  // namespace

int64_t TensorSource::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape_) count *= size;
  return count;
}

TensorSourcePtr tensor_of_file(std::shared_ptr<const TorchFile> file, PickledTensor tensor) {
  return std::make_shared<FileTensor>(std::move(file), std::move(tensor));
}

TensorSourcePtr slice_of(TensorSourcePtr source, int64_t begin, std::vector<int64_t> shape) {
  if (begin == 0 && shape == source->shape()) return source;
  return std::make_shared<Slice>(std::move(source), begin, std::move(shape));
}

TensorSourcePtr concatenated(std::vector<TensorSourcePtr> parts, std::vector<int64_t> shape) {
  if (parts.size() == 1) return slice_of(std::move(parts[0]), 0, std::move(shape));
  return std::make_shared<Concatenated>(std::move(parts), std::move(shape));
}

TensorSourcePtr transposed(TensorSourcePtr matrix) {
  return std::make_shared<Transposed>(std::move(matrix));
}

std::vector<char> read_all(const TensorSource& source) {
  std::vector<char> bytes(static_cast<size_t>(source.numel() * size_of(source.dtype())));
  source.read(0, source.numel(), bytes.data());
  return bytes;
}

}  // namespace teratron
