// Writes Megatron-LM's indexed dataset, byte for byte (formats: idx_format.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/data/indexed/binary_file.h"
#include "teratron/data/indexed/idx_format.h"

namespace teratron {

class IndexedDataset;

/// Element type for a vocabulary, as in Megatron-LM: u16 below 65500 ids, else i32 (also if unknown: 0). The
/// legacy format always uses i32.
Dtype token_dtype(int64_t vocab_size, IndexFormat format = IndexFormat::mmap);

/// Tokens are written to disk right away; 4 bytes per sequence and 8 per document stay in memory until
/// finalize(), which renames both files to their final names, the index last.
class IndexedDatasetBuilder {
 public:
  /// `dtype`: an integer type.
  IndexedDatasetBuilder(const std::string& prefix, Dtype dtype, IndexFormat format = IndexFormat::mmap);

  /// Appends a sequence to the current document. A token outside the range of the element type is
  /// UserError(data).
  void add_sequence(std::span<const int32_t> tokens);
  /// Ends the current document, which may be empty.
  void end_document() { document_indices_.push_back(static_cast<int64_t>(lengths_.size())); }
  /// Appends all documents of another dataset; UserError(data) if its element type differs.
  void add_dataset(const IndexedDataset& other);
  void finalize();

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t documents() const { return static_cast<int64_t>(document_indices_.size()) - 1; }
  int64_t tokens() const { return bin_.size() / size_of(dtype_); }

 private:
  void write_index();
  void write_legacy_index();

  Dtype dtype_;
  IndexFormat format_;
  BinaryWriter bin_;
  BinaryWriter idx_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> document_indices_ = {0};
};

}  // namespace teratron
