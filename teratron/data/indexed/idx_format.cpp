#include "teratron/data/indexed/idx_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

using uint128 = unsigned __int128;

constexpr std::array<Dtype, 8> kCodes = {Dtype::u8,  Dtype::i8,  Dtype::i16, Dtype::i32,
                                         Dtype::i64, Dtype::f64, Dtype::f32, Dtype::u16};
constexpr const char* kDamagedFix =
    "The file is damaged or not an indexed dataset; restore it or run preprocess again";

/// The first bytes of a file as little-endian numbers.
class HeaderBytes {
 public:
  explicit HeaderBytes(const BinaryReader& idx) : idx_(idx) {
    bytes_.resize(static_cast<size_t>(std::min(idx.size(), kLegacyIndexHeaderBytes)));
    idx.read_values(0, std::span(bytes_));
  }
  template <size_t N>
  bool starts_with(const char (&magic)[N]) const {
    return bytes_.size() >= N && std::memcmp(bytes_.data(), magic, N) == 0;
  }
  void require_size(int64_t bytes) const {
    if (idx_.size() >= bytes) return;
    throw damaged_dataset(idx_, fmt::format("has {} bytes, less than the header of {}", idx_.size(), bytes));
  }
  void require_version(size_t offset) const {
    if (number(offset) == 1) return;
    throw damaged_dataset(idx_, fmt::format("has version {}, expected 1", number(offset)));
  }
  uint8_t byte(size_t offset) const { return static_cast<uint8_t>(bytes_.at(offset)); }
  uint64_t number(size_t offset) const {
    uint64_t value;
    std::memcpy(&value, &bytes_.at(offset), sizeof(value));
    return value;
  }

 private:
  const BinaryReader& idx_;
  std::vector<std::byte> bytes_;
};

/// Sets the counts; `bytes` is the size of a file with them, in a type that cannot overflow.
void set_counts(const BinaryReader& idx, IdxHeader& header, std::pair<uint64_t, uint64_t> counts,
                uint128 bytes) {
  const auto [sequences, document_indices] = counts;
  if (document_indices == 0 || bytes != static_cast<uint128>(idx.size())) {
    throw damaged_dataset(idx,
                          fmt::format("has {} bytes, which does not fit the {} sequences and {} document "
                                      "entries of its header",
                                      idx.size(), sequences, document_indices));
  }
  header.sequences = static_cast<int64_t>(sequences);
  header.document_indices = static_cast<int64_t>(document_indices);
}

IdxHeader read_mmap(const BinaryReader& idx, const HeaderBytes& bytes, bool multimodal) {
  bytes.require_size(kIndexHeaderBytes);
  bytes.require_version(9);
  IdxHeader header{.dtype = dtype_from_code(bytes.byte(17), printable(idx.path(), 1000))};
  const uint64_t sequences = bytes.number(18);
  const uint64_t document_indices = bytes.number(26);
  set_counts(idx, header, {sequences, document_indices},
             uint128{sequences} * (multimodal ? 13 : 12) + uint128{document_indices} * 8 + kIndexHeaderBytes);
  header.lengths_offset = kIndexHeaderBytes;
  header.pointers_offset = header.lengths_offset + 4 * header.sequences;
  header.document_indices_offset = header.pointers_offset + 8 * header.sequences;
  header.modes_offset = header.document_indices_offset + 8 * header.document_indices;
  return header;
}

IdxHeader read_legacy(const BinaryReader& idx, const HeaderBytes& bytes, bool multimodal) {
  bytes.require_size(kLegacyIndexHeaderBytes);
  bytes.require_version(8);
  if (multimodal) throw damaged_dataset(idx, "is in the legacy format, which has no modes");
  IdxHeader header{.format = IndexFormat::legacy,
                   .dtype = dtype_from_code(bytes.number(16), printable(idx.path(), 1000)),
                   .length_bytes = 8};
  if (bytes.number(24) != static_cast<uint64_t>(size_of(header.dtype)))
    throw damaged_dataset(idx, fmt::format("declares that an element of type {} has {} bytes",
                                           name_of(header.dtype), bytes.number(24)));
  const uint64_t sequences = bytes.number(32);
  const uint64_t document_indices = bytes.number(48);
  if (bytes.number(40) != sequences)
    throw damaged_dataset(
        idx, fmt::format("has {} sizes for {} sequences: not token data", bytes.number(40), sequences));
  set_counts(idx, header, {sequences, document_indices},
             uint128{sequences} * 24 + uint128{document_indices} * 8 + 16 + kLegacyIndexHeaderBytes);
  header.pointer_unit = size_of(header.dtype);
  header.pointers_offset = kLegacyIndexHeaderBytes + 8 * (header.sequences + 1);
  header.lengths_offset = header.pointers_offset + 8 * (header.sequences + 1);
  header.document_indices_offset = header.lengths_offset + 8 * header.sequences;
  return header;
}

}  // namespace

Dtype dtype_from_code(uint64_t code, const std::string& where) {
  if (code < 1 || code > kCodes.size()) {
    throw data_error({.what = fmt::format("has the unknown dtype code {}, expected 1 to 8", code),
                      .where = where,
                      .fix = kDamagedFix});
  }
  return kCodes[code - 1];
}

uint8_t code_from_dtype(Dtype dtype) {
  const auto* found = std::find(kCodes.begin(), kCodes.end(), dtype);
  TERATRON_ASSERT(found != kCodes.end(), "{} has no code", name_of(dtype));
  return static_cast<uint8_t>(found - kCodes.begin() + 1);
}

UserError damaged_dataset(const BinaryReader& file, std::string what) {
  return data_error({.what = std::move(what), .where = printable(file.path(), 1000), .fix = kDamagedFix});
}

IdxHeader read_idx_header(const BinaryReader& idx, bool multimodal) {
  const HeaderBytes bytes(idx);
  IdxHeader header;
  if (bytes.starts_with(kLegacyIndexMagic)) {
    header = read_legacy(idx, bytes, multimodal);
  } else {
    bytes.require_size(kIndexHeaderBytes);
    if (!bytes.starts_with(kIndexMagic))
      throw damaged_dataset(idx, "does not start with the magic bytes MMIDIDX or TNTIDX");
    header = read_mmap(idx, bytes, multimodal);
  }
  if (header.dtype == Dtype::f32 || header.dtype == Dtype::f64)
    throw damaged_dataset(idx, "holds floating-point data, not tokens");
  return header;
}

}  // namespace teratron
