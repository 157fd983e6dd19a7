// Writes Megatron-LM's indexed dataset, byte for byte (formats: index_layout.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/data/indexed/idx_format.h"
#include "teratron/data/indexed/output_file.h"

namespace teratron {

class IndexedDataset;

/// Element type for a vocabulary: u16 below 65500 ids, else i32 (as Megatron-LM; 0 = unknown: i32).
/// The legacy format always has i32.
Dtype token_dtype(int64_t vocab_size, IndexFormat format = IndexFormat::mmap);

/// Tokens go straight to the disk; 4 bytes per sequence and 8 per document stay in memory until finalize().
/// Both files appear under their names only then, the index last.
class IndexedDatasetBuilder {
 public:
  /// `dtype` is an integer type.
  IndexedDatasetBuilder(const std::string& prefix, Dtype dtype, IndexFormat format = IndexFormat::mmap);

  /// Appends a sequence to the current document. A token that the element type cannot hold is
  /// UserError(data).
  void add_sequence(std::span<const int32_t> tokens);
  /// Ends the current document, which may be empty.
  void end_document() { table_.push_back(static_cast<int64_t>(lengths_.size())); }
  /// Appends all documents of another dataset of the same element type, else UserError(data).
  void add_dataset(const IndexedDataset& other);
  void finalize();

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t documents() const { return static_cast<int64_t>(table_.size()) - 1; }
  int64_t tokens() const { return bin_.size() / size_of(dtype_); }

 private:
  void write_index();
  void write_legacy_index();

  Dtype dtype_;
  IndexFormat format_;
  OutputFile bin_;
  OutputFile idx_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> table_ = {0};
};

}  // namespace teratron
