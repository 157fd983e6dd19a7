// Where bytes are read from: a file, a part of one, or memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace teratron {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual int64_t size() const = 0;
  /// Exactly [offset, offset + bytes); UserError(checkpoint) beyond the end. Thread-safe.
  virtual void read(void* out, int64_t bytes, int64_t offset) const = 0;
};

using ByteSourcePtr = std::shared_ptr<const ByteSource>;

ByteSourcePtr open_bytes(const std::filesystem::path& path);
ByteSourcePtr bytes_in_memory(std::string bytes);
/// [begin, begin + bytes) of another, which must contain it.
ByteSourcePtr bytes_within(ByteSourcePtr source, int64_t begin, int64_t bytes);

/// As a string.
std::string read_bytes(const ByteSource& source, int64_t bytes, int64_t offset);

}  // namespace teratron
