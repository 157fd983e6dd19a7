// Use of device memory.
#pragma once

#include <cstdint>

namespace teratron {

/// Bytes of PyTorch's caching allocator, now and at most.
struct MemoryUse {
  int64_t allocated = 0;
  int64_t max_allocated = 0;
  int64_t reserved = 0;
  int64_t max_reserved = 0;
};

}  // namespace teratron
