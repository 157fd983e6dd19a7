// Which buffer serves next, decided by sizes, streams and the order of calls alone: ranks that take and give back in the
// same order take buffers of the same number, wherever theirs lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace teratron {

class NumberedBuffers {
 public:
  /// Bytes of the buffers that serve `bytes`: few sizes, so that buffers serve again; large ones are hardly rounded.
  static size_t rounded(size_t bytes);

  /// The first free buffer of that size and stream; it is taken.
  std::optional<size_t> take(size_t bytes, const void* stream);
  /// A new one, which is taken; its number.
  size_t add(size_t bytes, const void* stream);
  void give_back(size_t number) { buffers_.at(number).free = true; }

 private:
  struct Buffer {
    size_t bytes;
    const void* stream;
    bool free = false;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace teratron
