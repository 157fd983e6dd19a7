// Megatron-LM's indexed dataset: `<prefix>.bin` holds the tokens of all sequences without gaps,
// `<prefix>.idx` says where each sequence lies and which sequences make up a document.
// The index has one of two formats (index_layout.h); both are read alike.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/data/indexed/idx_format.h"
#include "teratron/data/indexed/input_file.h"

namespace teratron {

/// Read access to one prefix. Thread-safe; memory use does not depend on the size of the data.
///
/// Opening checks the header, that the sizes of both files agree with it, and a sample of the entries, in
/// constant time. verify() checks everything. Everything that is read later is checked again against the file
/// sizes. Wrong or changed files throw UserError(data) naming file and sequence.
class IndexedDataset {
 public:
  explicit IndexedDataset(std::string prefix, DataModes modes = DataModes::none);

  const std::string& prefix() const { return prefix_; }
  const InputFile& bin() const { return bin_; }
  const InputFile& idx() const { return idx_; }
  IndexFormat format() const { return layout_.format; }
  Dtype dtype() const { return layout_.dtype; }
  int64_t sequences() const { return layout_.sequences; }
  int64_t documents() const { return layout_.table_entries - 1; }
  int64_t tokens() const { return bin_.size() / element_size_; }

  int32_t length(int64_t sequence) const;
  std::vector<int32_t> lengths(int64_t first, int64_t count) const;
  /// First sequence of a document; document == documents() gives sequences().
  int64_t document_start(int64_t document) const;
  std::vector<int64_t> document_starts(int64_t first, int64_t count) const;
  /// The document that holds a sequence.
  int64_t document_of(int64_t sequence) const;
  /// Modes of the sequences (multimodal data only).
  std::vector<int8_t> modes(int64_t first, int64_t count) const;

  /// Appends tokens [start, start + count) of a sequence; count < 0: up to its end. Returns how many.
  int64_t read(int64_t sequence, int64_t start, int64_t count, std::vector<int64_t>& tokens) const;

  /// Checks every entry of the index. Throws UserError(data) with all kinds of damage found.
  void verify() const;

 private:
  void check_files() const;
  void check_sequence(int64_t sequence) const;
  void check_document(int64_t document) const;
  void verify_sequences() const;
  void verify_documents() const;
  void verify_legacy_table() const;
  int64_t pointer(int64_t sequence) const;
  void read_pointers(int64_t first, std::span<int64_t> to) const;

  std::string prefix_;
  InputFile idx_;
  InputFile bin_;
  DataModes modes_;
  IndexLayout layout_;
  int64_t element_size_;
};

/// "corpus_text_document" of "corpus_text_document", "corpus_text_document.bin" or ".idx".
std::string strip_dataset_suffix(std::string path);

}  // namespace teratron
