// safetensors files (https://github.com/huggingface/safetensors, "Format"): 8 bytes little-endian header
// length, a JSON header {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
// "__metadata__": {...}}, then the data, row-major and without holes.
//
// Headers are untrusted. UserError(checkpoint), before anything larger than the header is allocated: a length
// beyond the file or 100 MB; not an object; nested, duplicate or unknown keys; an unknown dtype. Likewise for
// overflowing shapes, and offsets that are reversed, overlap, leave holes, are beyond the file or disagree
// with shape x dtype.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/base/file.h"

namespace teratron {

struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes within the data section
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by offset
  std::map<std::string, std::string> metadata;
};

/// Parses and checks the JSON part; `data_bytes` is the size of the data section.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                           const std::string& where);

/// Number of elements; nullopt if it overflows int64 or a size is negative.
std::optional<int64_t> checked_numel(const std::vector<int64_t>& shape);

/// A file open for reading, thread-safe. Reads are preads, not mmap: a file truncated meanwhile is an error,
/// not a crash.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// nullptr if there is none.
  const SafetensorsEntry* find(std::string_view name) const;
  /// Bytes [offset, offset + bytes) of a tensor.
  void read(const SafetensorsEntry& entry, int64_t offset, int64_t bytes, void* out) const;

 private:
  File file_;
  int64_t data_start_ = 0;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

/// Writes a new file as a stream: first the tensors are declared, then their bytes are written in that order.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    Dtype dtype = Dtype::f32;
    std::vector<int64_t> shape;
  };

  SafetensorsWriter(const std::filesystem::path& path, const std::vector<Tensor>& tensors,
                    const std::map<std::string, std::string>& metadata);

  void write(const void* data, int64_t bytes);
  /// Checks that all bytes were written, then fsync and close.
  void finish();

  /// The length field and the JSON.
  const std::string& header() const { return header_; }
  int64_t file_bytes() const { return static_cast<int64_t>(header_.size()) + data_bytes_; }

 private:
  int64_t data_bytes_ = 0;  // before header_, whose initialiser sets it
  int64_t written_ = 0;
  std::string header_;
  File file_;
};

}  // namespace teratron
