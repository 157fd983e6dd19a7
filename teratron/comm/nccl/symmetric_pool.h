// Decides which buffer of a pool an allocation gets, from sizes, streams and the order of calls only: ranks
// that allocate and free in the same order get buffers of the same index, whatever their addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace teratron {

class SymmetricPool {
 public:
  /// Rounds a size up so that few distinct sizes exist and buffers are reused; large sizes are hardly
  /// rounded.
  static size_t round_size(size_t bytes);

  /// Takes the first free buffer of this size and stream.
  std::optional<size_t> allocate(size_t bytes, const void* stream);
  /// Adds a buffer, in use, and returns its index.
  size_t add(size_t bytes, const void* stream);
  void free(size_t index) { buffers_.at(index).free = true; }

 private:
  struct Buffer {
    size_t bytes;
    const void* stream;
    bool free = false;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace teratron
