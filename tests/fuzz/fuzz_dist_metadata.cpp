// Any .metadata of a distributed checkpoint: it is refused, or each tensor in it is the grid of its chunks.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "teratron/base/error.h"
#include "teratron/pickle/dist_metadata.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const teratron::DistMetadata metadata = teratron::parse_dist_metadata(text, "metadata");
    for (const auto& [name, tensor] : metadata.tensors) {
      int64_t elements = 0, whole = 1;
      for (const int64_t length : tensor.shape) whole *= length;
      for (const teratron::DistChunk& chunk : tensor.chunks) {
        int64_t count = 1;
        for (const int64_t length : chunk.sizes) count *= length;
        elements += count;
      }
      const teratron::ChunkGrid grid = teratron::grid_of(tensor, name, "metadata");
      if (elements != whole || grid.cells.size() != tensor.chunks.size()) std::abort();
    }
  } catch (const teratron::UserError&) {
  }
  return 0;
}
