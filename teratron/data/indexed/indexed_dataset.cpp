#include "teratron/data/indexed/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "teratron/base/error.h"

namespace teratron {

namespace {

constexpr int64_t kChunk = 1 << 16;     // entries per read of a scan
constexpr int64_t kSampledChecks = 64;  // entries checked when opening

/// Up to kSampledChecks numbers of [0, n), both ends included.
std::vector<int64_t> spread(int64_t n) {
  const int64_t count = std::min(n, kSampledChecks);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(count == 1 ? 0 : static_cast<int64_t>(static_cast<__int128>(n - 1) * i / (count - 1)));
  }
  return numbers;
}

/// Widens the elements of type T stored at the end of `to` to int64, in place.
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

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// The .idx file. Text in place of a dataset is a frequent mistake.
std::string index_file(const std::string& prefix) {
  const std::string index = prefix + ".idx";
  if (is_file(index)) return index;
  for (const char* suffix : {"_text_document", "_text_sentence"}) {
    const std::string written = prefix + suffix;
    if (is_file(written + ".idx"))
      throw data_error({.what = "there is no such dataset",
                        .where = printable(index, 1000),
                        .fix = fmt::format("Use {}: preprocess adds the name of the texts to --output-prefix",
                                           printable(written, 1000))});
  }
  if (!is_file(prefix)) return index;
  const std::string name = printable(prefix.substr(0, prefix.find('.', prefix.rfind('/') + 1)), 1000);
  const bool has_lines = prefix.find(".json") != prefix.npos;
  const std::string input = has_lines ? printable(prefix, 1000) : name + ".jsonl";
  const std::string first =
      has_lines ? "Run" : fmt::format("Write each document as {{\"text\": ...}} on a line of {}, run", input);
  throw data_error(
      {.what = "is not an indexed dataset, which consists of a .bin and an .idx file",
       .where = printable(prefix, 1000),
       .fix = fmt::format(
           "{} `teratron preprocess --input {} --output-prefix {}` with tokenizer flags, then use "
           "{}_text_document",
           first, input, name, name)});
}

}  // namespace

IndexedDataset::IndexedDataset(std::string prefix, bool multimodal)
    : prefix_(std::move(prefix)),
      idx_(index_file(prefix_)),
      bin_(prefix_ + ".bin"),
      multimodal_(multimodal),
      header_(read_idx_header(idx_, multimodal)),
      element_size_(size_of(header_.dtype)) {
  check_files();
  // Both ends and evenly spaced entries between them: detects a truncated, shifted or swapped file.
  for (const int64_t sequence : spread(sequences())) check_sequence(sequence);
  for (const int64_t document : spread(documents())) check_document(document);
}

void IndexedDataset::check_files() const {
  if (bin_.size() % element_size_ != 0) {
    throw damaged_dataset(bin_, fmt::format("has {} bytes, not a multiple of the {} bytes of a token",
                                            bin_.size(), element_size_));
  }
  if (sequences() == 0 && bin_.size() != 0) {
    throw damaged_dataset(bin_, fmt::format("has {} bytes although the index has no sequence", bin_.size()));
  }
  if (document_start(0) != 0 || document_start(documents()) != sequences()) {
    throw damaged_dataset(idx_, "has a document table that does not run from 0 to the number of sequences");
  }
}

int32_t IndexedDataset::length(int64_t sequence) const {
  TERATRON_ASSERT(sequence >= 0 && sequence < sequences(), "sequence {} of {}", sequence, sequences());
  return checked_length(sequence, header_.length_bytes == 4
                                      ? idx_.read_value<int32_t>(header_.lengths_offset + 4 * sequence)
                                      : idx_.read_value<int64_t>(header_.lengths_offset + 8 * sequence));
}

int32_t IndexedDataset::checked_length(int64_t sequence, int64_t length) const {
  if (std::in_range<int32_t>(length) && length >= 0) return static_cast<int32_t>(length);
  throw damaged_dataset(idx_, fmt::format("has length {} for sequence {}", length, sequence));
}

std::vector<int32_t> IndexedDataset::lengths(int64_t first, int64_t count) const {
  TERATRON_ASSERT(first >= 0 && count >= 0 && first <= sequences() - count, "[{}, +{})", first, count);
  std::vector<int32_t> values(static_cast<size_t>(count));
  if (header_.length_bytes == 4) {
    idx_.read_values(header_.lengths_offset + 4 * first, std::span(values));
    for (int64_t i = 0; i < count; ++i) checked_length(first + i, values[static_cast<size_t>(i)]);
    return values;
  }
  std::vector<int64_t> wide(static_cast<size_t>(std::min(count, kChunk)));
  for (int64_t done = 0; done < count; done += kChunk) {
    const auto part = std::span(wide).first(static_cast<size_t>(std::min(kChunk, count - done)));
    idx_.read_values(header_.lengths_offset + 8 * (first + done), part);
    for (size_t i = 0; i < part.size(); ++i) {
      values[static_cast<size_t>(done) + i] = checked_length(first + done + static_cast<int64_t>(i), part[i]);
    }
  }
  return values;
}

void IndexedDataset::read_pointers(int64_t first, std::span<int64_t> to) const {
  idx_.read_values(header_.pointers_offset + 8 * first, to);
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] < 0 || to[i] > bin_.size() / header_.pointer_unit) {
      throw damaged_dataset(idx_,
                            fmt::format("places sequence {} at {} {} of {}", first + static_cast<int64_t>(i),
                                        header_.pointer_unit == 1 ? "byte" : "token", to[i],
                                        bin_.size() / header_.pointer_unit));
    }
    to[i] *= header_.pointer_unit;
  }
}

int64_t IndexedDataset::pointer(int64_t sequence) const {
  int64_t value = 0;
  read_pointers(sequence, std::span(&value, 1));
  return value;
}

int64_t IndexedDataset::document_start(int64_t document) const {
  TERATRON_ASSERT(document >= 0 && document < header_.document_indices, "document {} of {}", document,
                  documents());
  const auto value = idx_.read_value<int64_t>(header_.document_indices_offset + 8 * document);
  if (value < 0 || value > sequences()) {
    throw damaged_dataset(
        idx_, fmt::format("starts document {} at sequence {} of {}", document, value, sequences()));
  }
  return value;
}

std::vector<int64_t> IndexedDataset::document_starts(int64_t first, int64_t count) const {
  TERATRON_ASSERT(first >= 0 && count >= 0 && first <= header_.document_indices - count, "[{}, +{})", first,
                  count);
  std::vector<int64_t> values(static_cast<size_t>(count));
  idx_.read_values(header_.document_indices_offset + 8 * first, std::span(values));
  int64_t previous = 0;
  for (const int64_t value : values) {
    if (value < previous || value > sequences()) {
      throw damaged_dataset(idx_, fmt::format("has a document that starts at sequence {}, after {} of {}",
                                              value, previous, sequences()));
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
  TERATRON_ASSERT(multimodal_ && first >= 0 && count >= 0 && first <= sequences() - count);
  std::vector<int8_t> values(static_cast<size_t>(count));
  idx_.read_values(header_.modes_offset + first, std::span(values));
  return values;
}

int64_t IndexedDataset::read(int64_t sequence, int64_t start, int64_t count,
                             std::vector<int64_t>& tokens) const {
  const int64_t available = length(sequence);
  if (count < 0) count = available - start;
  if (start < 0 || count < 0 || start > available - count) {
    throw damaged_dataset(idx_, fmt::format("has {} tokens in sequence {}, but tokens {} to {} are requested",
                                            available, sequence, start, start + count));
  }
  if (count == 0) return 0;
  const int64_t offset = pointer(sequence);
  if (offset > bin_.size() - available * element_size_) {
    throw damaged_dataset(
        idx_, fmt::format("places sequence {} of {} tokens at byte {}, beyond the {} bytes of the data",
                          sequence, available, offset, bin_.size()));
  }
  const size_t old_size = tokens.size();
  tokens.resize(old_size + static_cast<size_t>(count));
  const auto added = std::span(tokens).subspan(old_size);
  const auto raw = std::as_writable_bytes(added).last(static_cast<size_t>(count * element_size_));
  bin_.read_values(offset + start * element_size_, raw);
  visit_token_type(header_.dtype, [&]<typename T>(T) { widen<T>(added); });
  return count;
}

void IndexedDataset::check_sequence(int64_t sequence) const {
  const int64_t start = pointer(sequence);
  const int64_t end = start + length(sequence) * element_size_;
  const bool last = sequence + 1 == sequences();
  const int64_t next = last ? bin_.size() : pointer(sequence + 1);
  if (end != next) {
    throw damaged_dataset(
        idx_, last ? fmt::format("ends its last sequence at byte {}, but the data has {} bytes", end, next)
                   : fmt::format("ends sequence {} at byte {} and starts the next one at byte {}", sequence,
                                 end, next));
  }
  if (sequence == 0 && start != 0) {
    throw damaged_dataset(idx_, "does not start its first sequence at byte 0");
  }
}

void IndexedDataset::check_document(int64_t document) const {
  const int64_t start = document_start(document);
  const int64_t end = document_start(document + 1);
  if (start > end) {
    throw damaged_dataset(
        idx_, fmt::format("starts document {} at sequence {} and the next one before it, at {}", document,
                          start, end));
  }
}

void IndexedDataset::verify() const {
  verify_sequences();
  verify_documents();
  if (header_.format == IndexFormat::legacy) verify_legacy_sizes();
}

void IndexedDataset::verify_sequences() const {
  std::vector<int64_t> values(kChunk);
  int64_t expected = 0;
  for (int64_t first = 0; first < sequences(); first += kChunk) {
    const int64_t count = std::min(kChunk, sequences() - first);
    const auto lengths = this->lengths(first, count);
    const auto pointers = std::span(values).first(static_cast<size_t>(count));
    read_pointers(first, pointers);
    for (int64_t i = 0; i < count; ++i) {
      if (pointers[i] != expected) {
        throw damaged_dataset(idx_, fmt::format("places sequence {} at byte {}, expected {}", first + i,
                                                pointers[i], expected));
      }
      expected += lengths[i] * element_size_;
    }
  }
  if (expected != bin_.size()) {
    throw damaged_dataset(bin_,
                          fmt::format("has {} bytes, but the index describes {}", bin_.size(), expected));
  }
}

void IndexedDataset::verify_documents() const {
  int64_t previous = 0;
  for (int64_t first = 0; first < header_.document_indices; first += kChunk) {
    const auto starts = document_starts(first, std::min(kChunk, header_.document_indices - first));
    if (starts.front() < previous) {
      throw damaged_dataset(
          idx_, fmt::format("starts document {} at sequence {}, after {}", first, starts.front(), previous));
    }
    previous = starts.back();
  }
}

/// Each sequence has one size, and the last pointer is the number of tokens.
void IndexedDataset::verify_legacy_sizes() const {
  std::vector<int64_t> values(kChunk);
  for (int64_t first = 0; first <= sequences(); first += kChunk) {
    const auto part = std::span(values).first(static_cast<size_t>(std::min(kChunk, sequences() + 1 - first)));
    idx_.read_values(kLegacyIndexHeaderBytes + 8 * first, part);
    for (size_t i = 0; i < part.size(); ++i) {
      const int64_t sequence = first + static_cast<int64_t>(i);
      if (part[i] != sequence)
        throw damaged_dataset(idx_, fmt::format("has first size {} for sequence {}", part[i], sequence));
    }
  }
  if (pointer(sequences()) != bin_.size())
    throw damaged_dataset(
        idx_, fmt::format("ends its pointers at byte {} of {}", pointer(sequences()), bin_.size()));
}

void IndexedDataset::check_vocabulary(int64_t sequence, int64_t start, std::span<const int64_t> tokens,
                                      int64_t vocab_size) const {
  const auto wrong = std::find_if(tokens.begin(), tokens.end(),
                                  [&](int64_t token) { return token < 0 || token >= vocab_size; });
  if (wrong == tokens.end()) return;
  throw data_error({.what = fmt::format("document {} (sequence {}), position {}: token id {} is outside the "
                                        "vocabulary of {}",
                                        document_of(sequence), sequence, start + (wrong - tokens.begin()),
                                        *wrong, vocab_size),
                    .where = printable(bin_.path(), 1000),
                    .fix = "Use the tokenizer that the data was made with"});
}

std::string strip_dataset_suffix(std::string path) {
  for (const std::string_view suffix : {".bin", ".idx"}) {
    if (path.ends_with(suffix)) return path.substr(0, path.size() - suffix.size());
  }
  return path;
}

}  // namespace teratron
