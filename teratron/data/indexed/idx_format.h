// The two formats of the .idx file of an indexed dataset, all little-endian.
//
// mmap, the present one (unaligned):
//   9 bytes "MMIDIDX\0\0" | u64 version = 1 | u8 element code | u64 S sequences | u64 D = documents + 1
//   i32[S] lengths in tokens | i64[S] byte offsets into .bin | i64[D] first sequence of each document, then S
//   i8[S] modes, only in multimodal data (nothing in the file says so)
// legacy, of Megatron-LM's old --dataset-impl cached and lazy:
//   8 bytes "TNTIDX\0\0" | u64 version = 1 | u64 element code | u64 bytes of an element | u64 S | u64 sizes | u64 D
//   i64[S + 1] first size of each sequence | i64[S + 1] offsets into .bin in tokens, then their number
//   i64[sizes] sizes: the lengths, because a sequence has one dimension | i64[D] as above
// Element codes: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16. Token data has an integer type.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/base/dtype.h"
#include "teratron/data/indexed/input_file.h"

namespace teratron {

enum class IndexFormat : uint8_t { mmap, legacy };
enum class DataModes : uint8_t { none, per_sequence };

inline constexpr char kIndexMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr char kLegacyIndexMagic[8] = {'T', 'N', 'T', 'I', 'D', 'X', '\0', '\0'};
inline constexpr int64_t kIndexHeaderBytes = 34;
inline constexpr int64_t kLegacyIndexHeaderBytes = 56;

/// Throws UserError(data) for an unknown code; `where` names the file.
Dtype dtype_of_index_code(uint64_t code, const std::string& where);
uint8_t index_code_of(Dtype dtype);

/// "The file is damaged ...": UserError(data) about one of the two files of a dataset.
UserError damaged_dataset(const InputFile& file, std::string what);

/// What the header says, and where each table begins.
struct IndexLayout {
  IndexFormat format = IndexFormat::mmap;
  Dtype dtype = Dtype::i32;
  int64_t sequences = 0;
  int64_t table_entries = 1;  // documents + 1
  int64_t lengths_at = 0, pointers_at = 0, table_at = 0, modes_at = 0;
  int64_t length_bytes = 4;   // of an entry of the lengths
  int64_t pointer_bytes = 1;  // what a pointer counts: bytes, or elements of this size
};

/// Reads the header and compares the counts in it with the size of the file, in constant time. Throws UserError(data).
IndexLayout read_index_layout(const InputFile& idx, DataModes modes);

}  // namespace teratron
