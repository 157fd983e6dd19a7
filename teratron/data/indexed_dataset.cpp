#include "teratron/data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr std::array<Dtype, 8> kCodes = {Dtype::u8,  Dtype::i8,  Dtype::i16, Dtype::i32,
                                         Dtype::i64, Dtype::f64, Dtype::f32, Dtype::u16};
constexpr int64_t kChunk = 1 << 16;     // entries per read of a scan
constexpr int64_t kSampledChecks = 64;  // entries looked at when opening

/// Up to kSampledChecks numbers of [0, n), both ends included.
std::vector<int64_t> spread(int64_t n) {
  const int64_t count = std::min(n, kSampledChecks);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(count == 1 ? 0 : static_cast<int64_t>(static_cast<__int128>(n - 1) * i / (count - 1)));
  }
  return numbers;
}

UserError damaged(const InputFile& file, std::string what) {
  return data_error(
      {.what = std::move(what),
       .where = printable(file.path(), 1000),
       .fix = "The file is damaged or not an indexed dataset; restore it or run preprocess again"});
}

/// Widens `count` elements of type T that lie at the end of `to` (8 bytes per element) to int64, in place.
template <typename T>
void widen(std::span<int64_t> to) {
  auto* bytes = reinterpret_cast<std::byte*>(to.data());
  const size_t start = to.size() * (sizeof(int64_t) - sizeof(T));
  for (size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, bytes + start + i * sizeof(T), sizeof(T));
    const auto wide = static_cast<int64_t>(value);
    std::memcpy(bytes + i * sizeof(int64_t), &wide, sizeof(wide));
  }
}

void widen(std::span<int64_t> to, Dtype dtype) {
  switch (dtype) {
    case Dtype::u8:
      return widen<uint8_t>(to);
    case Dtype::i8:
      return widen<int8_t>(to);
    case Dtype::u16:
      return widen<uint16_t>(to);
    case Dtype::i16:
      return widen<int16_t>(to);
    case Dtype::i32:
      return widen<int32_t>(to);
    case Dtype::i64:
      return;
    default:
      TERATRON_ASSERT(false, "floating point tokens");
  }
}

}  // namespace

Dtype dtype_of_index_code(uint8_t code, const std::string& where) {
  if (code < 1 || code > kCodes.size()) {
    throw data_error(
        {.what = fmt::format("unknown element code {} (1 to 8 are known)", code), .where = where});
  }
  return kCodes[code - 1];
}

uint8_t index_code_of(Dtype dtype) {
  const auto* found = std::find(kCodes.begin(), kCodes.end(), dtype);
  TERATRON_ASSERT(found != kCodes.end(), "{} has no code", name_of(dtype));
  return static_cast<uint8_t>(found - kCodes.begin() + 1);
}

IndexedDataset::IndexedDataset(std::string prefix, DataModes modes)
    : prefix_(std::move(prefix)), idx_(prefix_ + ".idx"), bin_(prefix_ + ".bin"), modes_(modes) {
  check_header();
  // Both ends and evenly spread entries between them: a cut, shifted or swapped file shows up here.
  for (const int64_t sequence : spread(sequences_)) check_sequence(sequence);
  for (const int64_t document : spread(documents())) check_document(document);
}

void IndexedDataset::check_header() {
  if (idx_.size() < kIndexHeaderBytes) {
    throw damaged(idx_,
                  fmt::format("has {} bytes, less than the header of {}", idx_.size(), kIndexHeaderBytes));
  }
  std::array<std::byte, kIndexHeaderBytes> header;
  idx_.read_at(0, header);
  if (std::memcmp(header.data(), kIndexMagic, sizeof(kIndexMagic)) != 0) {
    throw damaged(idx_, "does not start with the magic bytes MMIDIDX");
  }
  const auto field = [&](size_t offset) {
    uint64_t value;
    std::memcpy(&value, &header[offset], sizeof(value));
    return value;
  };
  if (field(9) != 1) throw damaged(idx_, fmt::format("has version {}, expected 1", field(9)));
  dtype_ = dtype_of_index_code(static_cast<uint8_t>(header[17]), printable(idx_.path(), 1000));
  if (dtype_ == Dtype::f32 || dtype_ == Dtype::f64)
    throw damaged(idx_, "holds floating point data, not tokens");
  element_size_ = size_of(dtype_);
  const uint64_t sequences = field(18);
  const uint64_t entries = field(26);
  const uint64_t per_sequence = modes_ == DataModes::per_sequence ? 13 : 12;
  const auto expected = static_cast<unsigned __int128>(sequences) * per_sequence +
                        static_cast<unsigned __int128>(entries) * 8 + kIndexHeaderBytes;
  if (entries == 0 || expected != static_cast<unsigned __int128>(idx_.size())) {
    throw damaged(idx_,
                  fmt::format("has {} bytes, which does not fit the {} sequences and {} document entries of "
                              "its header",
                              idx_.size(), sequences, entries));
  }
  sequences_ = static_cast<int64_t>(sequences);
  table_entries_ = static_cast<int64_t>(entries);
  if (bin_.size() % element_size_ != 0) {
    throw damaged(bin_, fmt::format("has {} bytes, not a multiple of the {} bytes of a token", bin_.size(),
                                    element_size_));
  }
  if (sequences_ == 0 && bin_.size() != 0) {
    throw damaged(bin_, fmt::format("has {} bytes although the index has no sequence", bin_.size()));
  }
  if (document_start(0) != 0 || document_start(documents()) != sequences_) {
    throw damaged(idx_, "has a document table that does not run from 0 to the number of sequences");
  }
}

int32_t IndexedDataset::length(int64_t sequence) const {
  TERATRON_ASSERT(sequence >= 0 && sequence < sequences_, "sequence {} of {}", sequence, sequences_);
  const auto value = idx_.read_value<int32_t>(lengths_at(sequence));
  if (value < 0) throw damaged(idx_, fmt::format("gives sequence {} the length {}", sequence, value));
  return value;
}

std::vector<int32_t> IndexedDataset::lengths(int64_t first, int64_t count) const {
  TERATRON_ASSERT(first >= 0 && count >= 0 && first <= sequences_ - count, "[{}, +{})", first, count);
  std::vector<int32_t> values(static_cast<size_t>(count));
  idx_.read_values(lengths_at(first), std::span(values));
  const auto wrong = std::find_if(values.begin(), values.end(), [](int32_t value) { return value < 0; });
  if (wrong != values.end()) {
    throw damaged(idx_,
                  fmt::format("gives sequence {} the length {}", first + (wrong - values.begin()), *wrong));
  }
  return values;
}

int64_t IndexedDataset::document_start(int64_t document) const {
  TERATRON_ASSERT(document >= 0 && document < table_entries_, "document {} of {}", document, documents());
  const auto value = idx_.read_value<int64_t>(table_at(document));
  if (value < 0 || value > sequences_) {
    throw damaged(idx_,
                  fmt::format("lets document {} start at sequence {} of {}", document, value, sequences_));
  }
  return value;
}

std::vector<int64_t> IndexedDataset::document_starts(int64_t first, int64_t count) const {
  TERATRON_ASSERT(first >= 0 && count >= 0 && first <= table_entries_ - count, "[{}, +{})", first, count);
  std::vector<int64_t> values(static_cast<size_t>(count));
  idx_.read_values(table_at(first), std::span(values));
  int64_t previous = 0;
  for (const int64_t value : values) {
    if (value < previous || value > sequences_) {
      throw damaged(idx_, fmt::format("has a document that starts at sequence {}, after {} of {}", value,
                                      previous, sequences_));
    }
    previous = value;
  }
  return values;
}

int64_t IndexedDataset::document_of(int64_t sequence) const {
  // Last document that starts at or before the sequence; empty documents share a start.
  int64_t low = 0;
  int64_t high = documents();
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_start(middle) <= sequence ? low : high) = middle;
  }
  return low;
}

std::vector<int8_t> IndexedDataset::modes(int64_t first, int64_t count) const {
  TERATRON_ASSERT(modes_ == DataModes::per_sequence && first >= 0 && count >= 0 &&
                  first <= sequences_ - count);
  std::vector<int8_t> values(static_cast<size_t>(count));
  idx_.read_values(table_at(table_entries_) + first, std::span(values));
  return values;
}

int64_t IndexedDataset::read(int64_t sequence, int64_t start, int64_t count,
                             std::vector<int64_t>& tokens) const {
  const int64_t available = length(sequence);
  if (count < 0) count = available - start;
  if (start < 0 || count < 0 || start > available - count) {
    throw damaged(idx_, fmt::format("gives sequence {} {} tokens, but tokens {} to {} are wanted", sequence,
                                    available, start, start + count));
  }
  if (count == 0) return 0;
  const auto pointer = idx_.read_value<int64_t>(pointers_at(sequence));
  if (pointer < 0 || pointer > bin_.size() - available * element_size_) {
    throw damaged(idx_,
                  fmt::format("places sequence {} of {} tokens at byte {}, beyond the {} bytes of the data",
                              sequence, available, pointer, bin_.size()));
  }
  const size_t old_size = tokens.size();
  tokens.resize(old_size + static_cast<size_t>(count));
  const auto added = std::span(tokens).subspan(old_size);
  const auto raw = std::as_writable_bytes(added).last(static_cast<size_t>(count * element_size_));
  bin_.read_at(pointer + start * element_size_, raw);
  widen(added, dtype_);
  return count;
}

void IndexedDataset::check_sequence(int64_t sequence) const {
  const auto start = idx_.read_value<int64_t>(pointers_at(sequence));
  if (start < 0 || start > bin_.size()) {
    throw damaged(idx_, fmt::format("places sequence {} at byte {} of {}", sequence, start, bin_.size()));
  }
  const int64_t end = start + length(sequence) * element_size_;
  const bool last = sequence + 1 == sequences_;
  const int64_t next = last ? bin_.size() : idx_.read_value<int64_t>(pointers_at(sequence + 1));
  if (end != next) {
    throw damaged(
        idx_, last ? fmt::format("ends its last sequence at byte {}, but the data has {} bytes", end, next)
                   : fmt::format("ends sequence {} at byte {} and starts the next one at byte {}", sequence,
                                 end, next));
  }
  if (sequence == 0 && start != 0) {
    throw damaged(idx_, "does not start its first sequence at byte 0");
  }
}

void IndexedDataset::check_document(int64_t document) const {
  const int64_t start = document_start(document);
  const int64_t end = document_start(document + 1);
  if (start > end) {
    throw damaged(idx_, fmt::format("starts document {} at sequence {} and the next one before it, at {}",
                                    document, start, end));
  }
}

void IndexedDataset::verify() const {
  std::vector<int64_t> values(kChunk);
  int64_t expected = 0;
  for (int64_t first = 0; first < sequences_; first += kChunk) {
    const int64_t count = std::min(kChunk, sequences_ - first);
    const auto lengths = this->lengths(first, count);
    const auto pointers = std::span(values).first(static_cast<size_t>(count));
    idx_.read_values(pointers_at(first), pointers);
    for (int64_t i = 0; i < count; ++i) {
      if (pointers[i] != expected) {
        throw damaged(idx_, fmt::format("places sequence {} at byte {}, expected {}", first + i, pointers[i],
                                        expected));
      }
      expected += lengths[i] * element_size_;
    }
  }
  if (expected != bin_.size()) {
    throw damaged(bin_, fmt::format("has {} bytes, but the index describes {}", bin_.size(), expected));
  }
  int64_t previous = 0;
  for (int64_t first = 0; first < table_entries_; first += kChunk) {
    const auto starts = document_starts(first, std::min(kChunk, table_entries_ - first));
    if (starts.front() < previous) {
      throw damaged(
          idx_, fmt::format("starts document {} at sequence {}, after {}", first, starts.front(), previous));
    }
    previous = starts.back();
  }
}

std::string strip_dataset_suffix(std::string path) {
  for (const std::string_view suffix : {".bin", ".idx"}) {
    if (path.ends_with(suffix)) return path.substr(0, path.size() - suffix.size());
  }
  return path;
}

}  // namespace teratron
