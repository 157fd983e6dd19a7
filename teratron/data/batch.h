// The columns of a sample, declared once by the model family: the dataset fills them, and the data loader,
// the broadcast, the copy to the device and the CUDA graphs loop over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "teratron/base/error.h"

namespace teratron {

enum class ColumnType : uint8_t { i64, i32, f32 };
int64_t element_size(ColumnType type);

/// One named array per sample.
struct Column {
  enum class Kind : uint8_t {
    sequence,  // [S, ...], stacked as [S, B, ...]; cut over the context-parallel ranks
    sample,    // any shape, stacked as [B, ...]
    segments,  // i32 [S]: first position of each token's segment, named "...segment_start"; stacked as
               // "...cu_seqlens" (nn/tokens/segments.h)
    index,     // i64 [S]: 0, 1, ... S - 1, not read from the dataset; stacked as [S, B] with stride 0 along B
    items,     // any number of arrays of this shape, as images; stacked as [N, ...], all of the first sample
               // before those of the second. Without any the micro-batch does not have the column
  };
  /// Pipeline stages on which the batch has the column.
  enum class Stages : uint8_t { all, first, last, ends };  // ends: first and last

  std::string name;
  ColumnType type = ColumnType::i64;
  std::vector<int64_t> shape;  // of one sample
  Kind kind = Kind::sequence;
  Stages stages = Stages::all;

  int64_t numel() const;
  /// Whether the dataset fills it.
  bool is_read() const { return kind != Kind::index; }
};

using BatchSchema = std::vector<Column>;

/// The column `name`, or null.
const Column* find_column(const BatchSchema& schema, std::string_view name);

/// Writable columns of one sample, zero at first. A view of a Batch.
class Sample {
 public:
  struct Part {
    const Column* column = nullptr;
    std::byte* data = nullptr;
    std::vector<std::byte>* items = nullptr;  // of a column of items, in place of data
  };
  explicit Sample(std::vector<Part> parts) : parts_(std::move(parts)) {}

  bool has(std::string_view name) const { return find(name) != nullptr; }
  std::span<int64_t> i64(std::string_view name) const { return values<int64_t>(name, ColumnType::i64); }
  std::span<int32_t> i32(std::string_view name) const { return values<int32_t>(name, ColumnType::i32); }
  std::span<float> f32(std::string_view name) const { return values<float>(name, ColumnType::f32); }
  /// Makes this sample's part of a column of items so many arrays, of zeros.
  std::span<float> f32_items(std::string_view name, int64_t count) const;

 private:
  const Part* find(std::string_view name) const;
  /// UserError(config): the dataset, which may be a program's, fills a column that the model has not.
  [[noreturn]] void refuse(std::string_view name, ColumnType type) const;
  template <typename T>
  std::span<T> values(std::string_view name, ColumnType type) const {
    const Part* const part = find(name);
    if (!part || part->column->type != type || part->items) refuse(name, type);
    return {reinterpret_cast<T*>(part->data), static_cast<size_t>(part->column->numel())};
  }
  std::vector<Part> parts_;
};

/// The samples of a micro-batch in host memory: the columns that are read, each sample by sample.
class Batch {
 public:
  Batch(const BatchSchema& schema, int64_t samples);

  int64_t samples() const { return samples_; }
  const BatchSchema& schema() const { return schema_; }
  Sample sample(int64_t i);
  /// All samples of column `c` of the schema, which does not hold items.
  const std::byte* data(size_t c) const { return data_[c].data(); }
  /// What each sample has of column `c`, which holds items.
  const std::vector<std::vector<std::byte>>& items(size_t c) const { return items_[c]; }
  template <typename T>
  std::span<const T> values(std::string_view name) const {
    const Column* const column = find_column(schema_, name);
    TERATRON_ASSERT(column && element_size(column->type) == sizeof(T), "no column {} of this type", name);
    const std::vector<std::byte>& bytes = data_[static_cast<size_t>(column - schema_.data())];
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  BatchSchema schema_;
  int64_t samples_;
  std::vector<std::vector<std::byte>> data_;  // by column; empty for those not read and for items
  std::vector<std::vector<std::vector<std::byte>>> items_;  // by column and sample; empty for other columns
};

}  // namespace teratron
