#include "python/module/samples.h"

#include <cstring>

#include "python/module/tensor_caster.h"
#include <fmt/ranges.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace teratron::python {

namespace {

thread_local bool in_dataset = false;  // lint: allow(global-state): of the thread

at::ScalarType scalar_type_of(ColumnType type) {
  if (type == ColumnType::i64) return at::kLong;
  return type == ColumnType::i32 ? at::kInt : at::kFloat;
}

bool is_stacked_along_1(const Column& column) {
  return column.kind == Column::Kind::sequence || column.kind == Column::Kind::segments;
}

// What one sample has of a column of items: none if it leaves the column out.
void copy_items(const Tensors& columns, const Column& column, const Sample& sample,
                const std::string& where) {
  const auto found = columns.find(column.name);
  if (found == columns.end()) return;
  const at::Tensor& values = found->second;
  std::vector<int64_t> shape = column.shape;
  shape.insert(shape.begin(), values.dim() == 0 ? 0 : values.size(0));
  if (values.sizes() != at::IntArrayRef(shape)) {
    throw data_error({.what = fmt::format("{} has the shape [{}], not [any number, {}]", column.name,
                                          fmt::join(values.sizes(), ", "), fmt::join(column.shape, ", ")),
                      .where = where,
                      .fix = "Give what the model's settings say"});
  }
  const at::Tensor host = values.detach().to(at::kCPU, scalar_type_of(column.type)).contiguous();
  const std::span<float> to = sample.f32_items(column.name, shape[0]);
  std::memcpy(to.data(), host.data_ptr(), to.size_bytes());
}

// The items of some batches, one after another; undefined without any.
at::Tensor all_items(const std::vector<Batch>& batches, size_t c) {
  const Column& column = batches.at(0).schema()[c];
  const int64_t bytes = column.numel() * element_size(column.type);
  std::vector<at::Tensor> parts;
  for (const Batch& batch : batches) {
    for (const std::vector<std::byte>& items : batch.items(c)) {
      std::vector<int64_t> shape = column.shape;
      shape.insert(shape.begin(), std::ssize(items) / bytes);
      parts.push_back(at::from_blob(const_cast<std::byte*>(items.data()), shape,
                                    at::TensorOptions().dtype(scalar_type_of(column.type))));
    }
  }
  return at::cat(parts);
}

// The column of `rows` samples, [rows, shape...], on the host and contiguous.
at::Tensor rows_of(const Tensors& columns, const Column& column, int64_t rows, const std::string& where) {
  std::vector<int64_t> shape = column.shape;
  shape.insert(shape.begin(), rows);
  const auto options = at::TensorOptions().dtype(scalar_type_of(column.type));
  const auto found = columns.find(column.name);
  if (found == columns.end()) {
    if (column.name == "loss_mask") return at::ones(shape, options);
    if (column.kind == Column::Kind::segments) return at::zeros(shape, options);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : columns) names.push_back(name);
    throw data_error(
        {.what = fmt::format("the column {} is missing; there are {}", column.name, fmt::join(names, ", ")),
         .where = where,
         .fix = "Add it"});
  }
  if (found->second.sizes() != at::IntArrayRef(shape)) {
    throw data_error({.what = fmt::format("{} has the shape [{}], not [{}]", column.name,
                                          fmt::join(found->second.sizes(), ", "), fmt::join(shape, ", ")),
                      .where = where,
                      .fix = "Give samples of the length and batch size in the settings"});
  }
  const at::Tensor& values = found->second;
  if (column.type != ColumnType::f32 && values.is_floating_point()) {
    throw data_error({.what = fmt::format("{} has real numbers, not integers", column.name),
                      .where = where,
                      .fix = "Convert it"});
  }
  return values.detach().to(options.device(at::kCPU)).contiguous();
}

// Ids of tokens are of the vocabulary, labels where they have a loss.
void check_ids(const Tensors& columns, const BatchSchema& schema, int64_t vocabulary,
               const std::string& where) {
  for (const Column& column : schema) {
    if (column.kind == Column::Kind::items) return;  // ids stand for what is not of the vocabulary
  }
  for (const Column& column : schema) {
    const bool is_sequence = column.kind == Column::Kind::sequence;  // not a sample's class
    const bool is_label = (column.name == "labels" && is_sequence) || column.name == "masked_labels";
    const auto found = columns.find(column.name);
    if (found == columns.end() || !(is_label || column.name.ends_with("tokens"))) continue;
    at::Tensor wrong = at::logical_or(found->second < 0, found->second >= vocabulary);
    const auto mask = columns.find(column.name == "labels" ? "loss_mask" : "masked_loss_mask");
    if (is_label && mask != columns.end() && mask->second.sizes() == wrong.sizes())
      wrong = at::logical_and(wrong, mask->second.to(wrong.device()) != 0);
    if (!wrong.any().item<bool>()) continue;
    const auto id = found->second.masked_select(wrong)[0].item<int64_t>();
    throw data_error(
        {.what = fmt::format("{} has the id {}, and the vocabulary has {}", column.name, id, vocabulary),
         .where = where,
         .fix =
             is_label ? "Give loss_mask 0 where nothing is predicted" : "Use the tokenizer of the settings"});
  }
}

void copy_row(const at::Tensor& values, int64_t row, const Column& column, const Sample& sample) {
  const auto bytes = static_cast<size_t>(column.numel() * element_size(column.type));
  std::byte* to = nullptr;
  if (column.type == ColumnType::i64) to = reinterpret_cast<std::byte*>(sample.i64(column.name).data());
  if (column.type == ColumnType::i32) to = reinterpret_cast<std::byte*>(sample.i32(column.name).data());
  if (column.type == ColumnType::f32) to = reinterpret_cast<std::byte*>(sample.f32(column.name).data());
  std::memcpy(to, static_cast<const std::byte*>(values.data_ptr()) + static_cast<size_t>(row) * bytes, bytes);
}

}  // namespace

Tensors stacked(const std::vector<Batch>& batches) {
  Tensors tensors;
  const BatchSchema& schema = batches.at(0).schema();
  for (size_t c = 0; c < schema.size(); ++c) {
    const Column& column = schema[c];
    if (!column.is_read()) continue;
    if (column.kind == Column::Kind::items) {
      tensors[column.name] = all_items(batches, c);
      continue;
    }
    std::vector<at::Tensor> parts;
    for (const Batch& batch : batches) {
      std::vector<int64_t> shape = column.shape;
      shape.insert(shape.begin(), batch.samples());
      parts.push_back(at::from_blob(const_cast<std::byte*>(batch.data(c)), shape,
                                    at::TensorOptions().dtype(scalar_type_of(column.type))));
    }
    at::Tensor values = at::cat(parts);
    if (is_stacked_along_1(column)) values = values.transpose(0, 1).contiguous();
    tensors[column.name] = values;
  }
  return tensors;
}

std::vector<Batch> unstacked(const Tensors& columns, const BatchSchema& schema, const ItemShape& item) {
  const int64_t rows_in_all = item.micro_batch_size * item.micro_batches;
  Tensors samples = columns;
  for (const Column& column : schema) {
    const auto found = samples.find(column.name);
    if (found == samples.end() || !is_stacked_along_1(column) || found->second.dim() < 2) continue;
    found->second = found->second.transpose(0, 1);
  }
  std::vector<Batch> batches;
  for (int64_t i = 0; i < item.micro_batches; ++i) batches.emplace_back(schema, item.micro_batch_size);
  for (const Column& column : schema) {
    if (!column.is_read()) continue;
    if (column.kind == Column::Kind::items) {
      throw config_error({.what = fmt::format("{} has any number of parts of each sample", column.name),
                          .where = "the batch",
                          .fix = "Train from a dataset, whose samples say which are theirs"});
    }
    const at::Tensor rows = rows_of(samples, column, rows_in_all, "the batch");
    for (int64_t row = 0; row < rows_in_all; ++row)
      copy_row(rows, row, column, batches[row / item.micro_batch_size].sample(row % item.micro_batch_size));
  }
  check_ids(samples, schema, item.vocabulary, "the batch");
  return batches;
}

PythonDataset::PythonDataset(Held object, BatchSchema schema, std::string split, int64_t vocabulary)
    : object_(std::move(object)),
      schema_(std::move(schema)),
      split_(std::move(split)),
      vocabulary_(vocabulary) {
  size_ = static_cast<int64_t>(nb::len(*object_));
}

void PythonDataset::get(int64_t i, const Sample& sample) const {
  const std::string where = fmt::format("dataset[\"{}\"][{}]", split_, i);
  Tensors columns;
  struct Called {
    Called() { in_dataset = true; }
    ~Called() { in_dataset = false; }
  } const called;
  try {
    const nb::gil_scoped_acquire gil;
    columns = nb::cast<Tensors>(object_->attr("get")(i));
  } catch (const nb::python_error& error) {
    const nb::gil_scoped_acquire gil;
    const auto text = nb::cast<std::string>(object_->attr("explained")(error.value()));
    throw data_error({.what = printable(text, 2000), .where = where, .fix = "Correct the dataset"});
  }
  for (const Column& column : schema_) {
    if (column.kind == Column::Kind::items) copy_items(columns, column, sample, where);
  }
  for (auto& [name, tensor] : columns) tensor = tensor.unsqueeze(0);
  for (const Column& column : schema_) {
    if (column.is_read() && column.kind != Column::Kind::items)
      copy_row(rows_of(columns, column, 1, where), 0, column, sample);
  }
  check_ids(columns, schema_, vocabulary_, where);
}

bool PythonDataset::is_called() {
  return in_dataset;
}

std::string PythonDataset::describe() const {
  return fmt::format("{} split of the program, {} samples", split_, size_);
}

}  // namespace teratron::python
