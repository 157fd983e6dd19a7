// The two formats of the .idx file of an indexed dataset, all little-endian.
//
// mmap, the current one (unaligned):
//   9 bytes "MMIDIDX\0\0" | u64 version = 1 | u8 dtype code | u64 S sequences | u64 D = documents + 1
//   i32[S] lengths in tokens | i64[S] byte offsets into .bin | i64[D] first sequence of each document, then S
//   i8[S] modes, in multimodal data only (the file itself does not record whether it has them)
// legacy, of Megatron-LM's old --dataset-impl cached and lazy:
//   8 bytes "TNTIDX\0\0" | u64 version = 1 | u64 dtype code | u64 element bytes | u64 S | u64 sizes | u64 D
//   i64[S + 1] first size of each sequence | i64[S + 1] offsets into .bin in tokens, then number of tokens
//   i64[sizes] sizes: the lengths, since a sequence has one dimension | i64[D] as above
// Dtype codes: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16. Tokens have an integer type.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/base/dtype.h"
#include "teratron/base/error.h"
#include "teratron/data/indexed/binary_file.h"

namespace teratron {

enum class IndexFormat : uint8_t { mmap, legacy };

inline constexpr char kIndexMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr char kLegacyIndexMagic[8] = {'T', 'N', 'T', 'I', 'D', 'X', '\0', '\0'};
inline constexpr int64_t kIndexHeaderBytes = 34;
inline constexpr int64_t kLegacyIndexHeaderBytes = 56;

/// Throws UserError(data) for an unknown code; `where` names the file.
Dtype dtype_from_code(uint64_t code, const std::string& where);
uint8_t code_from_dtype(Dtype dtype);

/// Returns visit(T{}) with the C++ type T of an integer token type.
template <typename Visitor>
auto visit_token_type(Dtype dtype, const Visitor& visit) {
  switch (dtype) {
    case Dtype::u8:
      return visit(uint8_t{});
    case Dtype::i8:
      return visit(int8_t{});
    case Dtype::u16:
      return visit(uint16_t{});
    case Dtype::i16:
      return visit(int16_t{});
    case Dtype::i32:
      return visit(int32_t{});
    default:
      TERATRON_ASSERT(dtype == Dtype::i64, "tokens of type {}", name_of(dtype));
      return visit(int64_t{});
  }
}

/// UserError(data) about one of the two files of a dataset, with advice to restore it.
UserError damaged_dataset(const BinaryReader& file, std::string what);

/// The header, and where each array starts.
struct IdxHeader {
  IndexFormat format = IndexFormat::mmap;
  Dtype dtype = Dtype::i32;
  int64_t sequences = 0;
  int64_t document_indices = 1;  // documents + 1
  int64_t lengths_offset = 0, pointers_offset = 0, document_indices_offset = 0, modes_offset = 0;
  int64_t length_bytes = 4;  // size of one length
  int64_t pointer_unit = 1;  // bytes that a pointer counts in: 1, or those of an element
};

/// Reads the header and checks its counts against the file size, in constant time. Throws UserError(data).
IdxHeader read_idx_header(const BinaryReader& idx, bool multimodal);

}  // namespace teratron
