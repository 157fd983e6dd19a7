// Megatron-LM's indexed dataset: `<prefix>.bin` holds the tokens of all sequences without gaps,
// `<prefix>.idx` where each sequence starts and which sequences form a document, in one of two formats
// (idx_format.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/data/indexed/binary_file.h"
#include "teratron/data/indexed/idx_format.h"

namespace teratron {

/// Read access to one prefix. Thread-safe; memory use is independent of the data size.
///
/// Opening checks the header, the sizes of both files and a sample of the entries, in constant time; verify()
/// checks every entry. Each later read is checked against the file sizes. Damaged or changed files throw
/// UserError(data) naming file and sequence.
class IndexedDataset {
 public:
  /// `multimodal`: the index has a mode for each sequence.
  explicit IndexedDataset(std::string prefix, bool multimodal = false);

  const std::string& prefix() const { return prefix_; }
  const BinaryReader& bin() const { return bin_; }
  const BinaryReader& idx() const { return idx_; }
  IndexFormat format() const { return header_.format; }
  Dtype dtype() const { return header_.dtype; }
  int64_t sequences() const { return header_.sequences; }
  int64_t documents() const { return header_.document_indices - 1; }
  int64_t tokens() const { return bin_.size() / element_size_; }

  int32_t length(int64_t sequence) const;
  std::vector<int32_t> lengths(int64_t first, int64_t count) const;
  /// First sequence of a document; sequences() for document == documents().
  int64_t document_start(int64_t document) const;
  std::vector<int64_t> document_starts(int64_t first, int64_t count) const;
  /// The document that contains a sequence.
  int64_t document_of(int64_t sequence) const;
  /// Modes of the sequences, if `multimodal`.
  std::vector<int8_t> modes(int64_t first, int64_t count) const;

  /// Appends tokens [start, start + count) of a sequence, up to its end if count < 0. Returns their number.
  int64_t read(int64_t sequence, int64_t start, int64_t count, std::vector<int64_t>& tokens) const;

  /// Checks every entry of the index. Throws UserError(data) for the first kind of damage found.
  void verify() const;
  /// UserError(data) unless all `tokens`, read from position `start` of `sequence`, are below `vocab_size`.
  void check_vocabulary(int64_t sequence, int64_t start, std::span<const int64_t> tokens,
                        int64_t vocab_size) const;

 private:
  void check_files() const;
  int32_t checked_length(int64_t sequence, int64_t length) const;
  void check_sequence(int64_t sequence) const;
  void check_document(int64_t document) const;
  void verify_sequences() const;
  void verify_documents() const;
  void verify_legacy_sizes() const;
  int64_t pointer(int64_t sequence) const;
  void read_pointers(int64_t first, std::span<int64_t> to) const;

  std::string prefix_;
  BinaryReader idx_;
  BinaryReader bin_;
  bool multimodal_;
  IdxHeader header_;
  int64_t element_size_;
};

/// The prefix of a dataset given as prefix, .bin or .idx path.
std::string strip_dataset_suffix(std::string path);

}  // namespace teratron
