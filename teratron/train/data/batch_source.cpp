#include "teratron/train/data/batch_source.h"

#include <algorithm>
#include <bit>

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/strings.h"
#include "teratron/comm/broadcast_coalesced.h"
#include "teratron/comm/consensus.h"
#include "teratron/train/data/row_packing.h"

namespace teratron {

namespace {

at::ScalarType scalar_type(ColumnType type) {
  switch (type) {
    case ColumnType::i64:
      return at::kLong;
    case ColumnType::i32:
      return at::kInt;
    case ColumnType::f32:
      return at::kFloat;
  }
  return at::kLong;
}

// First token of each segment, counted through the samples one after the other.
std::vector<int32_t> segment_bounds(std::span<const int32_t> starts, int64_t samples) {
  const int64_t length = static_cast<int64_t>(starts.size()) / samples;
  std::vector<int32_t> bounds;
  for (int64_t token = 0; token < samples * length; ++token) {
    if (starts[token] == token % length) bounds.push_back(static_cast<int32_t>(token));
  }
  return bounds;
}

// "segment_start" -> "cu_seqlens".
std::string stacked_name(const Column& column) {
  if (column.kind != Column::Kind::segments) return column.name;
  const std::string_view from = "segment_start";
  TERATRON_ASSERT(column.name.ends_with(from), "column {}", column.name);
  return column.name.substr(0, column.name.size() - from.size()) + "cu_seqlens";
}

// From rank 0, whatever their number.
template <typename T>
void broadcast_numbers(std::vector<T>& numbers, const Group& group) {
  if (group.size == 1) return;
  const std::string all = broadcast_bytes(*group.communicator, fmt::format("{}", fmt::join(numbers, " ")));
  numbers.clear();
  for (const std::string& number : split(all)) numbers.push_back(static_cast<T>(std::stoll(number)));
}

BatchReader reader_of(std::shared_ptr<DataLoader> loader) {
  return [loader = std::move(loader)] { return loader->next(); };
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

BatchSchema columns_of_stage(const BatchSchema& schema, const Mesh& mesh) {
  using Stages = Column::Stages;
  const Group& stages = mesh.group(Axis::pp);
  BatchSchema columns;
  for (const Column& column : schema) {
    const bool first = stages.rank == 0, last = stages.rank == stages.size - 1;
    const bool here = column.stages == Stages::all || (first && column.stages != Stages::last) ||
                      (last && column.stages != Stages::first);
    if (here) columns.push_back(column);
  }
  return columns;
}

bool uses_data(const BatchSchema& schema, const Mesh& mesh) {
  const BatchSchema columns = columns_of_stage(schema, mesh);
  return std::any_of(columns.begin(), columns.end(), [](const Column& column) { return column.is_read(); });
}

bool reads_data(const BatchSchema& schema, const Mesh& mesh) {
  return mesh.group(Axis::tp).rank == 0 && uses_data(schema, mesh);
}

BatchSource::BatchSource(std::shared_ptr<const Dataset> dataset, const Options& options, const Mesh& mesh)
    : BatchSource(reads_data(options.schema, mesh) ? reader_of(std::make_shared<DataLoader>(
                                                         std::move(dataset), options.schema, options.loader))
                                                   : BatchReader(),
                  options, mesh) {}

BatchSource::BatchSource(BatchReader reader, const Options& options, const Mesh& mesh)
    : options_(options), tensor_parallel_(mesh.group(Axis::tp)), context_parallel_(mesh.group(Axis::cp)) {
  if (reads_data(options.schema, mesh)) reader_ = std::move(reader);
  options_.schema = columns_of_stage(options.schema, mesh);
  const BatchSamplerOptions& sampler = options.loader.sampler;
  next_sample_ = sampler.consumed_samples + sampler.dp_rank * sampler.micro_batch_size;
}

Batch BatchSource::read() {
  std::optional<Batch> batch = reader_();
  if (!batch) {
    throw data_error({.what = fmt::format("the {} split ends after sample {}", options_.split, next_sample_),
                      .where = "--data-path",
                      .fix = "Use fewer steps or more data, or --dataloader-type cyclic to repeat the data"});
  }
  return *std::move(batch);
}

void BatchSource::cut(const Batch* batch, int64_t samples) {
  if (context_parallel_.size == 1) return;
  std::vector<int64_t> lengths;
  for (const Column& column : options_.schema) {
    if (column.kind == Column::Kind::index) lengths.push_back(column.numel());
  }
  TERATRON_ASSERT(!lengths.empty(), "a batch without sequences on context-parallel ranks");
  const auto make_whole = [&](ContextParallel& cut, int64_t length) {
    if (!cut.cut || !cut.cut->whole_samples || cut.cut->rows_SB.size(1) != samples)
      cut = {context_parallel_, make_context_cut(samples, length, context_parallel_, options_.device)};
  };
  const int64_t length = lengths.back();
  if (lengths.size() > 1) make_whole(source_, lengths.front());
  std::vector<int32_t> bounds;
  if (const Column* const segments = find_column(options_.schema, "segment_start")) {
    if (batch) bounds = segment_bounds(batch->values<int32_t>(segments->name), samples);
    broadcast_numbers(bounds, tensor_parallel_);
  }
  if (std::ssize(bounds) <= samples) return make_whole(context_, length);
  context_ = {context_parallel_,
              make_context_cut(bounds, samples, length, context_parallel_, options_.device)};
}

const ContextParallel& BatchSource::cut_of(int64_t length) const {
  const bool is_source = source_.cut && source_.cut->order.numel() == length * source_.cut->rows_SB.size(1);
  return is_source ? source_ : context_;
}

at::Tensor BatchSource::stacked(const Column& column, const Batch* batch, int64_t samples) const {
  std::vector<int64_t> shape = column.shape;
  shape.insert(shape.begin(), samples);
  const auto type = at::TensorOptions().dtype(scalar_type(column.type));
  const bool is_sequence = column.kind == Column::Kind::sequence;
  if (!batch) {
    if (is_sequence) shape = {shape[1] / context_parallel_.size, samples};
    if (is_sequence) shape.insert(shape.end(), column.shape.begin() + 1, column.shape.end());
    return at::empty(shape, type.device(options_.device));
  }
  const auto c = static_cast<size_t>(find_column(batch->schema(), column.name) - batch->schema().data());
  at::Tensor values = at::from_blob(const_cast<std::byte*>(batch->data(c)), shape, type);
  if (is_sequence) values = values.transpose(0, 1);
  // Not contiguous(), which for a single sample would be a view of the batch's memory.
  values = to_device(values.clone(at::MemoryFormat::Contiguous), options_.device);
  return is_sequence ? cut_tokens(values, cut_of(column.shape.at(0))) : values;
}

at::Tensor BatchSource::stacked_items(const Column& column, const Batch* batch) const {
  const auto type = at::TensorOptions().dtype(scalar_type(column.type));
  const int64_t bytes = column.numel() * element_size(column.type);
  std::vector<at::Tensor> parts;
  int64_t count = 0;
  if (batch) {
    const auto c = static_cast<size_t>(find_column(batch->schema(), column.name) - batch->schema().data());
    for (const std::vector<std::byte>& items : batch->items(c)) {
      std::vector<int64_t> shape = column.shape;
      shape.insert(shape.begin(), std::ssize(items) / bytes);
      count += shape[0];
      if (shape[0] > 0) parts.push_back(at::from_blob(const_cast<std::byte*>(items.data()), shape, type));
    }
  }
  // The others cannot know the number.
  if (tensor_parallel_.size > 1)
    count = std::stoll(broadcast_bytes(*tensor_parallel_.communicator, std::to_string(count)));
  if (count == 0) return {};
  if (batch) return to_device(at::cat(parts), options_.device);
  std::vector<int64_t> shape = column.shape;
  shape.insert(shape.begin(), count);
  return at::empty(shape, type.device(options_.device));
}

at::Tensor BatchSource::cu_seqlens(const Column& column, const Batch* batch, int64_t samples) {
  std::vector<int32_t> bounds;
  if (batch) bounds = segment_bounds(batch->values<int32_t>(column.name), samples);
  const auto power = static_cast<int64_t>(std::bit_ceil(std::max<size_t>(bounds.size(), 1)));
  int64_t segments = std::max(segments_, power);
  if (static_cast<int64_t>(bounds.size()) == samples) segments = 0;  // each sample is one
  // The others cannot know the shape.
  if (tensor_parallel_.size > 1)
    segments = std::stoll(broadcast_bytes(*tensor_parallel_.communicator, std::to_string(segments)));
  if (segments == 0) return {};
  segments_ = segments;
  const auto i32 = at::TensorOptions().dtype(at::kInt);
  if (!batch) return at::empty({segments_ + 1}, i32.device(options_.device));
  bounds.resize(static_cast<size_t>(segments_ + 1), static_cast<int32_t>(samples * column.numel()));
  return to_device(at::tensor(bounds, i32), options_.device);
}

std::vector<int64_t> BatchSource::row_lengths(const Batch* batch) const {
  std::vector<int64_t> lengths;
  if (batch) {
    const std::span<const int32_t> starts = batch->values<int32_t>("segment_start");
    const auto row = std::ssize(starts) / batch->samples();
    for (int64_t first = 0; first < std::ssize(starts); first += row) {
      const auto tokens = starts.subspan(static_cast<size_t>(first), static_cast<size_t>(row));
      lengths.push_back(std::ranges::find_if(tokens, [](int32_t start) { return start != 0; }) -
                        tokens.begin());
    }
  }
  broadcast_numbers(lengths, tensor_parallel_);
  return lengths;
}

at::Tensor BatchSource::index_SB(const Column& column, int64_t samples) {
  const ContextParallel& context = cut_of(column.numel());
  if (context.cut && !context.cut->whole_samples) return context.cut->rows_SB;
  const at::Tensor& made = index_[column.name];
  if (made.defined() && made.size(1) == samples) return made;
  const at::Tensor rows_S = context.cut ? context.cut->rows_SB.select(1, 0)
                                        : at::arange(column.shape.at(0), at::kLong).to(options_.device);
  index_.set(column.name, rows_S.unsqueeze(1).expand({rows_S.size(0), samples}));
  return index_[column.name];
}

MicroBatch BatchSource::next(Padding padding) {
  const BatchSamplerOptions& sampler = options_.loader.sampler;
  std::optional<Batch> batch;
  if (reader_) batch = read();
  const int64_t samples = batch ? batch->samples() : sampler.micro_batch_size;
  cut(batch ? &*batch : nullptr, samples);
  MicroBatch micro{.context_parallel = context_, .source_parallel = source_};
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const Column& column : options_.schema) {
    const Batch* const host = batch ? &*batch : nullptr;
    if (column.kind == Column::Kind::index) {
      micro.tensors.set(column.name, index_SB(column, samples));
      continue;
    }
    using Kind = Column::Kind;
    const at::Tensor values = column.kind == Kind::segments ? cu_seqlens(column, host, samples)
                              : column.kind == Kind::items  ? stacked_items(column, host)
                                                            : stacked(column, host, samples);
    if (!values.defined()) continue;
    names.push_back(stacked_name(column));
    tensors.push_back(values);
  }
  tensors = broadcast_coalesced(tensors, tensor_parallel_);
  for (size_t i = 0; i < names.size(); ++i) micro.tensors.set(names[i], tensors[i]);
  micro.sample_ids_B = at::arange(next_sample_, next_sample_ + samples,
                                  at::TensorOptions().dtype(at::kLong).device(options_.device));
  next_sample_ += sampler.micro_batch_size * sampler.dp_size;
  if (padding == Padding::kept || !micro["cu_seqlens"].defined()) return micro;
  const int64_t row = find_column(options_.schema, "segment_start")->numel();
  return without_padding(micro, options_.schema,
                         {.lengths = row_lengths(batch ? &*batch : nullptr),
                          .row = row,
                          .multiple = packing_multiple(row, samples, tensor_parallel_.size)});
}

}  // namespace teratron
