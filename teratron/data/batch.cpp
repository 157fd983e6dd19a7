#include "teratron/data/batch.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "teratron/base/error.h"

namespace teratron {

int64_t element_size(ColumnType type) {
  return type == ColumnType::i64 ? 8 : 4;
}

int64_t Column::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

const Column* find_column(const BatchSchema& schema, std::string_view name) {
  const auto found = std::find_if(schema.begin(), schema.end(),
                                  [name](const Column& column) { return column.name == name; });
  return found == schema.end() ? nullptr : &*found;
}

const Sample::Part* Sample::find(std::string_view name) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(),
                                  [name](const Part& part) { return part.column->name == name; });
  return found == parts_.end() ? nullptr : &*found;
}

void Sample::refuse(std::string_view name, ColumnType type) const {
  const auto type_name = [](ColumnType each) {
    return each == ColumnType::i64 ? "i64" : each == ColumnType::i32 ? "i32" : "f32";
  };
  std::string columns;
  for (const Part& part : parts_)
    columns += fmt::format("{}{} ({})", columns.empty() ? "" : ", ", part.column->name,
                           type_name(part.column->type));
  throw config_error({.what = fmt::format("a sample has no column {} of {}", name, type_name(type)),
                      .where = "the dataset",
                      .fix = "The columns of the model's batches are " + columns});
}

std::span<float> Sample::f32_items(std::string_view name, int64_t count) const {
  const Part* const part = find(name);
  if (!part || part->column->type != ColumnType::f32 || !part->items) refuse(name, ColumnType::f32);
  const auto elements = static_cast<size_t>(count * part->column->numel());
  part->items->assign(elements * sizeof(float), std::byte{0});
  return {reinterpret_cast<float*>(part->items->data()), elements};
}

Batch::Batch(const BatchSchema& schema, int64_t samples)
    : schema_(schema), samples_(samples), items_(schema.size()) {
  for (size_t c = 0; c < schema_.size(); ++c) {
    const Column& column = schema_[c];
    const bool has_items = column.kind == Column::Kind::items;
    const bool is_fixed = column.is_read() && !has_items;
    data_.emplace_back(
        static_cast<size_t>(is_fixed ? samples * column.numel() * element_size(column.type) : 0));
    if (has_items) items_[c].resize(static_cast<size_t>(samples));
  }
}

Sample Batch::sample(int64_t i) {
  std::vector<Sample::Part> parts;
  for (size_t c = 0; c < schema_.size(); ++c) {
    if (!schema_[c].is_read()) continue;
    if (schema_[c].kind == Column::Kind::items) {
      parts.push_back({.column = &schema_[c], .items = &items_[c].at(static_cast<size_t>(i))});
      continue;
    }
    const int64_t size = schema_[c].numel() * element_size(schema_[c].type);
    parts.push_back({&schema_[c], data_[c].data() + i * size});
  }
  return Sample(std::move(parts));
}

}  // namespace teratron
