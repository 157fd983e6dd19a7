#include "teratron/data/indexed/indexed_dataset_builder.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset.h"

namespace teratron {

namespace {

/// Converts to T and writes; false if a value is out of range.
template <typename T>
bool write_as(BinaryWriter& file, std::span<const int32_t> tokens) {
  std::vector<T> values;
  values.reserve(tokens.size());
  for (const int32_t token : tokens) {
    if (!std::in_range<T>(token)) return false;
    values.push_back(static_cast<T>(token));
  }
  file.write_values(std::span<const T>(values));
  return true;
}

}  // namespace

Dtype token_dtype(int64_t vocab_size, IndexFormat format) {
  return format == IndexFormat::mmap && vocab_size > 0 && vocab_size < 65500 ? Dtype::u16 : Dtype::i32;
}

IndexedDatasetBuilder::IndexedDatasetBuilder(const std::string& prefix, Dtype dtype, IndexFormat format)
    : dtype_(dtype), format_(format), bin_(prefix + ".bin"), idx_(prefix + ".idx") {}

void IndexedDatasetBuilder::add_sequence(std::span<const int32_t> tokens) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw data_error(
        {.what = fmt::format("a sequence has {} tokens, more than the index can represent", tokens.size()),
         .where = bin_.path(),
         .fix = "Split the text"});
  }
  if (!visit_token_type(dtype_, [&]<typename T>(T) { return write_as<T>(bin_, tokens); })) {
    const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
    throw data_error(
        {.what = fmt::format("token ids from {} to {} do not fit in {}", *low, *high, name_of(dtype_)),
         .where = bin_.path(),
         .fix = "Pass the vocabulary size of the tokenizer"});
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
}

void IndexedDatasetBuilder::add_dataset(const IndexedDataset& other) {
  if (other.dtype() != dtype_) {
    throw data_error({.what = fmt::format("has {} tokens, but {} is written as {}", name_of(other.dtype()),
                                          bin_.path(), name_of(dtype_)),
                      .where = other.prefix(),
                      .fix = "Merge only datasets of one tokenizer"});
  }
  const int64_t before = sequences();
  constexpr int64_t kChunk = 1 << 20;
  for (int64_t first = 0; first < other.sequences(); first += kChunk) {
    const auto lengths = other.lengths(first, std::min(kChunk, other.sequences() - first));
    lengths_.insert(lengths_.end(), lengths.begin(), lengths.end());
  }
  for (int64_t first = 1; first <= other.documents(); first += kChunk) {
    for (const int64_t start :
         other.document_starts(first, std::min(kChunk, other.documents() + 1 - first))) {
      document_indices_.push_back(before + start);
    }
  }
  std::vector<std::byte> block(kChunk);
  for (int64_t offset = 0; offset < other.bin().size(); offset += kChunk) {
    const auto part =
        std::span(block).first(static_cast<size_t>(std::min(kChunk, other.bin().size() - offset)));
    other.bin().read_values(offset, part);
    bin_.write(part);
  }
}

void IndexedDatasetBuilder::write_index() {
  idx_.write_values(std::span<const char>(kIndexMagic));
  idx_.write_value(uint64_t{1});
  idx_.write_value(code_from_dtype(dtype_));
  idx_.write_value(static_cast<uint64_t>(lengths_.size()));
  idx_.write_value(static_cast<uint64_t>(document_indices_.size()));
  idx_.write_values(std::span<const int32_t>(lengths_));
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    idx_.write_value(pointer);
    pointer += length * size_of(dtype_);
  }
  TERATRON_ASSERT(pointer == bin_.size(), "{} bytes in the index, {} written", pointer, bin_.size());
}

void IndexedDatasetBuilder::write_legacy_index() {
  const auto count = static_cast<uint64_t>(lengths_.size());
  idx_.write_values(std::span<const char>(kLegacyIndexMagic));
  for (const uint64_t number :
       {uint64_t{1}, uint64_t{code_from_dtype(dtype_)}, static_cast<uint64_t>(size_of(dtype_)), count, count,
        static_cast<uint64_t>(document_indices_.size())}) {
    idx_.write_value(number);
  }
  for (uint64_t size = 0; size <= count; ++size) idx_.write_value(size);
  int64_t token = 0;
  idx_.write_value(token);
  for (const int32_t length : lengths_) idx_.write_value(token += length);
  for (const int32_t length : lengths_) idx_.write_value(static_cast<int64_t>(length));
  TERATRON_ASSERT(token == tokens(), "{} tokens in the index, {} written", token, tokens());
}

void IndexedDatasetBuilder::finalize() {
  if (format_ == IndexFormat::legacy) {
    write_legacy_index();
  } else {
    write_index();
  }
  idx_.write_values(std::span<const int64_t>(document_indices_));
  // A process killed between the two renames must not leave an old index with new data.
  std::error_code ignored;
  std::filesystem::remove(idx_.path(), ignored);
  bin_.commit();
  idx_.commit();
}

}  // namespace teratron
