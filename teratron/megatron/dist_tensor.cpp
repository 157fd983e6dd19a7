#include "teratron/megatron/dist_tensor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

class ChunkedTensor final : public TensorSource {
 public:
  ChunkedTensor(std::shared_ptr<const DistFiles> files, const std::string& name, const DistTensor& tensor)
      : TensorSource(tensor.dtype, tensor.shape),
        files_(std::move(files)),
        name_(name),
        tensor_(tensor),
        grid_(grid_of(tensor_, name, printable(files_->folder().string(), 4096))) {}

  // Row by row of the last dimension; consecutive rows of the same chunks are read together.
  void read(int64_t begin, int64_t end, char* out) const override {
    const int64_t columns = shape().empty() ? 1 : shape().back();
    while (begin < end) {
      const int64_t row = begin / columns;
      const Band band = band_of(row);
      const int64_t last = std::min((end + columns - 1) / columns, row + band.rows);
      const int64_t until = std::min(end, last * columns);
      read_band(band, {.row = row, .begin = begin, .end = until}, out);
      out += (until - begin) * size_of(dtype());
      begin = until;
    }
  }

 private:
  // Rows from one on that lie in the same chunks one after the other.
  struct Band {
    size_t first_cell = 0;  // of the last dimension's
    int64_t chunk_row = 0;  // of the first row, in each chunk
    int64_t rows = 1;
  };
  struct Range {
    int64_t row;    // first
    int64_t begin;  // elements
    int64_t end;
  };

  Band band_of(int64_t row) const {
    const size_t dims = shape().size();
    Band band;
    if (dims == 0) return band;
    std::vector<int64_t> index(dims, 0);
    for (size_t i = dims - 1; i-- > 0; row /= shape()[i]) index[i] = row % shape()[i];
    for (size_t i = 0; i + 1 < dims; ++i) {
      const size_t cell = grid_.find(i, index[i]);
      band.first_cell = band.first_cell * grid_.starts[i].size() + cell;
      const int64_t start = grid_.starts[i][cell];
      const int64_t stop = cell + 1 < grid_.starts[i].size() ? grid_.starts[i][cell + 1] : shape()[i];
      band.chunk_row = band.chunk_row * (stop - start) + index[i] - start;
      if (i + 2 == dims) band.rows = stop - index[i];
    }
    band.first_cell *= grid_.starts[dims - 1].size();
    return band;
  }

  void read_band(const Band& band, const Range& range, char* out) const {
    const size_t cells = shape().empty() ? 1 : grid_.starts.back().size();
    const int64_t element = size_of(dtype()), columns = shape().empty() ? 1 : shape().back();
    const int64_t rows = (range.end + columns - 1) / columns - range.row;
    if (cells == 1) {
      const int64_t skipped = range.begin - range.row * columns, from = band.chunk_row * columns + skipped;
      return read_chunk(*grid_.cells[band.first_cell], from, from + range.end - range.begin, out);
    }
    std::vector<char> block;
    for (size_t cell = 0; cell < cells; ++cell) {
      const DistChunk& chunk = *grid_.cells[band.first_cell + cell];
      const int64_t width = chunk.sizes.back();
      block.resize(static_cast<size_t>(rows * width * element));
      read_chunk(chunk, band.chunk_row * width, (band.chunk_row + rows) * width, block.data());
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = (range.row + row) * columns + chunk.offsets.back();
        const int64_t from = std::max(at, range.begin), to = std::min(at + width, range.end);
        if (from >= to) continue;
        std::memcpy(out + (from - range.begin) * element, block.data() + (row * width + from - at) * element,
                    static_cast<size_t>((to - from) * element));
      }
    }
  }

  void read_chunk(const DistChunk& chunk, int64_t begin, int64_t end, char* out) const {
    const std::string where = fmt::format("{}/{}, tensor \"{}\"", printable(files_->folder().string(), 4096),
                                          printable(chunk.item.file), printable(name_));
    const TorchFile file(files_->bytes_of(chunk.item), where);
    int64_t elements = 1;
    for (const int64_t size : chunk.sizes) elements *= size;
    const PickleValue& root = file.root();
    if (!root.is(PickleValue::Kind::tensor) || teratron::numel(root.tensor()) != elements ||
        file.dtype_of(root.tensor()) != dtype())
      throw checkpoint_error({.what = "a part of the tensor is not what .metadata says",
                              .where = where,
                              .fix = "Copy the checkpoint again, or use another"});
    file.read(root.tensor(), begin, end, out);
  }

  std::shared_ptr<const DistFiles> files_;
  std::string name_;
  DistTensor tensor_;
  ChunkGrid grid_;
};

}  // namespace

ByteSourcePtr DistFiles::bytes_of(const DistItem& item) const {
  const std::lock_guard lock(mutex_);
  ByteSourcePtr& file = open_[item.file];
  if (file == nullptr) file = open_bytes(folder_ / item.file);
  if (item.bytes > file->size() || item.offset > file->size() - item.bytes)
    throw checkpoint_error({.what = "the file is cut off",
                            .where = printable((folder_ / item.file).string(), 4096),
                            .fix = "Copy the checkpoint again, or use another"});
  return bytes_within(file, item.offset, item.bytes);
}

TensorSourcePtr tensor_of_chunks(std::shared_ptr<const DistFiles> files, const std::string& name,
                                 const DistTensor& tensor) {
  return std::make_shared<ChunkedTensor>(std::move(files), name, tensor);
}

}  // namespace teratron
