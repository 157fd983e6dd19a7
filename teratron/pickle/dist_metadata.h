// The file .metadata of a checkpoint in format `torch_dist` (PyTorch's distributed checkpoints): which
// tensors there are, in which chunks, and where each is. Each item in a .distcp file is a whole file of
// torch.save.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/dtype.h"

namespace teratron {

struct DistItem {
  std::string file;  // a name in the folder of .metadata
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct DistChunk {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;
  DistItem item;
};

struct DistTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::vector<DistChunk> chunks;  // of a grid: they cover the tensor without overlap
};

struct DistMetadata {
  std::map<std::string, DistTensor> tensors;
  std::vector<std::string> order;         // names of the tensors, as saved
  std::map<std::string, DistItem> items;  // that are not tensors
};

/// UserError(checkpoint) for anything but such metadata, or if a tensor is not covered by its chunks. `where`
/// names the file. Time and memory are linear in the size of the text.
DistMetadata parse_dist_metadata(std::string_view text, const std::string& where);

/// The text of such a file. Its tensors are in the order of `order`.
std::string write_dist_metadata(const DistMetadata& metadata);

/// Where the chunks of a tensor begin, by dimension, and their number.
struct ChunkGrid {
  std::vector<std::vector<int64_t>> starts;  // sorted; the first is 0
  std::vector<const DistChunk*> cells;       // row-major

  /// The cell that contains element `at` of dimension `dimension`.
  size_t find(size_t dimension, int64_t at) const;
};
ChunkGrid grid_of(const DistTensor& tensor, const std::string& name, const std::string& where);

}  // namespace teratron
