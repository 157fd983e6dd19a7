// Megatron-LM's indexed dataset: `<prefix>.bin` holds the tokens of all sequences without gaps,
// `<prefix>.idx` says where each sequence lies and which sequences make up a document.
//
// .idx, little-endian and unaligned:
//   9 bytes "MMIDIDX\0\0" | u64 version = 1 | u8 element code | u64 S sequences | u64 D = documents + 1
//   i32[S] lengths in tokens | i64[S] byte offsets into .bin | i64[D] first sequence of each document, then S
//   i8[S] modes, only in multimodal data (nothing in the file says so)
// Element codes: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16. Token data has an integer type.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "teratron/base/dtype.h"
#include "teratron/data/input_file.h"

namespace teratron {

/// Bytes of the .idx header and the codes of the element types.
inline constexpr int64_t kIndexHeaderBytes = 34;
inline constexpr char kIndexMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
/// Throws UserError(data) for an unknown code; `where` names the file.
Dtype dtype_of_index_code(uint8_t code, const std::string& where);
uint8_t index_code_of(Dtype dtype);

enum class DataModes : uint8_t { none, per_sequence };

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
  Dtype dtype() const { return dtype_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return table_entries_ - 1; }
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
  void check_header();
  void check_sequence(int64_t sequence) const;
  void check_document(int64_t document) const;
  int64_t lengths_at(int64_t sequence) const { return kIndexHeaderBytes + 4 * sequence; }
  int64_t pointers_at(int64_t sequence) const { return kIndexHeaderBytes + 4 * sequences_ + 8 * sequence; }
  int64_t table_at(int64_t entry) const { return kIndexHeaderBytes + 12 * sequences_ + 8 * entry; }

  std::string prefix_;
  InputFile idx_;
  InputFile bin_;
  DataModes modes_;
  Dtype dtype_ = Dtype::i32;
  int64_t element_size_ = 4;
  int64_t sequences_ = 0;
  int64_t table_entries_ = 1;
};

/// "corpus_text_document" of "corpus_text_document", "corpus_text_document.bin" or ".idx".
std::string strip_dataset_suffix(std::string path);

}  // namespace teratron
