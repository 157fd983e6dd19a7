#include "teratron/data/indexed/idx_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr std::array<Dtype, 8> kCodes = {Dtype::u8,  Dtype::i8,  Dtype::i16, Dtype::i32,
                                         Dtype::i64, Dtype::f64, Dtype::f32, Dtype::u16};

/// The first bytes of a file as little-endian numbers.
class Header {
 public:
  explicit Header(const InputFile& idx) : idx_(idx) {
    bytes_.resize(static_cast<size_t>(std::min(idx.size(), kLegacyIndexHeaderBytes)));
    idx.read_at(0, bytes_);
  }
  template <size_t N>
  bool starts_with(const char (&magic)[N]) const {
    return bytes_.size() >= N && std::memcmp(bytes_.data(), magic, N) == 0;
  }
  void need(int64_t bytes) const {
    if (idx_.size() < bytes)
      throw damaged_dataset(idx_,
                            fmt::format("has {} bytes, less than the header of {}", idx_.size(), bytes));
  }
  uint8_t byte(size_t offset) const { return static_cast<uint8_t>(bytes_.at(offset)); }
  uint64_t number(size_t offset) const {
    uint64_t value;
    std::memcpy(&value, &bytes_.at(offset), sizeof(value));
    return value;
  }

 private:
  const InputFile& idx_;
  std::vector<std::byte> bytes_;
};

/// Sets the counts; `bytes` is the size of a file with them, in a type that cannot overflow.
void set_counts(const InputFile& idx, IndexLayout& layout, std::pair<uint64_t, uint64_t> counts,
                unsigned __int128 bytes) {
  const auto [sequences, entries] = counts;
  if (entries == 0 || bytes != static_cast<unsigned __int128>(idx.size())) {
    throw damaged_dataset(idx,
                          fmt::format("has {} bytes, which does not fit the {} sequences and {} document "
                                      "entries of its header",
                                      idx.size(), sequences, entries));
  }
  layout.sequences = static_cast<int64_t>(sequences);
  layout.table_entries = static_cast<int64_t>(entries);
}

IndexLayout read_mmap(const InputFile& idx, const Header& header, DataModes modes) {
  header.need(kIndexHeaderBytes);
  if (header.number(9) != 1)
    throw damaged_dataset(idx, fmt::format("has version {}, expected 1", header.number(9)));
  IndexLayout layout{.dtype = dtype_of_index_code(header.byte(17), printable(idx.path(), 1000))};
  const uint64_t sequences = header.number(18);
  const uint64_t entries = header.number(26);
  const uint64_t per_sequence = modes == DataModes::per_sequence ? 13 : 12;
  set_counts(idx, layout, {sequences, entries},
             static_cast<unsigned __int128>(sequences) * per_sequence +
                 static_cast<unsigned __int128>(entries) * 8 + kIndexHeaderBytes);
  layout.lengths_at = kIndexHeaderBytes;
  layout.pointers_at = layout.lengths_at + 4 * layout.sequences;
  layout.table_at = layout.pointers_at + 8 * layout.sequences;
  layout.modes_at = layout.table_at + 8 * layout.table_entries;
  return layout;
}

IndexLayout read_legacy(const InputFile& idx, const Header& header, DataModes modes) {
  header.need(kLegacyIndexHeaderBytes);
  if (header.number(8) != 1)
    throw damaged_dataset(idx, fmt::format("has version {}, expected 1", header.number(8)));
  if (modes == DataModes::per_sequence)
    throw damaged_dataset(idx, "is of the old format, which has no modes");
  IndexLayout layout{.format = IndexFormat::legacy,
                     .dtype = dtype_of_index_code(header.number(16), printable(idx.path(), 1000)),
                     .length_bytes = 8};
  if (header.number(24) != static_cast<uint64_t>(size_of(layout.dtype)))
    throw damaged_dataset(idx, fmt::format("says that an element of type {} has {} bytes",
                                           name_of(layout.dtype), header.number(24)));
  const uint64_t sequences = header.number(32);
  const uint64_t entries = header.number(48);
  if (header.number(40) != sequences)
    throw damaged_dataset(
        idx, fmt::format("has {} sizes for {} sequences: not token data", header.number(40), sequences));
  set_counts(idx, layout, {sequences, entries},
             static_cast<unsigned __int128>(sequences) * 24 + static_cast<unsigned __int128>(entries) * 8 +
                 16 + kLegacyIndexHeaderBytes);
  layout.pointer_bytes = size_of(layout.dtype);
  layout.pointers_at = kLegacyIndexHeaderBytes + 8 * (layout.sequences + 1);
  layout.lengths_at = layout.pointers_at + 8 * (layout.sequences + 1);
  layout.table_at = layout.lengths_at + 8 * layout.sequences;
  return layout;
}

constexpr const char* kDamagedFix =
    "The file is damaged or not an indexed dataset; restore it or run preprocess again";

}  // namespace

Dtype dtype_of_index_code(uint64_t code, const std::string& where) {
  if (code < 1 || code > kCodes.size()) {
    throw data_error({.what = fmt::format("unknown element code {} (1 to 8 are known)", code),
                      .where = where,
                      .fix = kDamagedFix});
  }
  return kCodes[code - 1];
}

uint8_t index_code_of(Dtype dtype) {
  const auto* found = std::find(kCodes.begin(), kCodes.end(), dtype);
  TERATRON_ASSERT(found != kCodes.end(), "{} has no code", name_of(dtype));
  return static_cast<uint8_t>(found - kCodes.begin() + 1);
}

UserError damaged_dataset(const InputFile& file, std::string what) {
  return data_error({.what = std::move(what), .where = printable(file.path(), 1000), .fix = kDamagedFix});
}

IndexLayout read_index_layout(const InputFile& idx, DataModes modes) {
  const Header header(idx);
  IndexLayout layout;
  if (header.starts_with(kLegacyIndexMagic)) {
    layout = read_legacy(idx, header, modes);
  } else {
    header.need(kIndexHeaderBytes);
    if (!header.starts_with(kIndexMagic))
      throw damaged_dataset(idx, "does not start with the magic bytes MMIDIDX or TNTIDX");
    layout = read_mmap(idx, header, modes);
  }
  if (layout.dtype == Dtype::f32 || layout.dtype == Dtype::f64)
    throw damaged_dataset(idx, "holds floating point data, not tokens");
  return layout;
}

}  // namespace teratron
