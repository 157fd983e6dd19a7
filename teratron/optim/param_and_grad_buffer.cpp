#include "teratron/optim/param_and_grad_buffer.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/optimizer/optimizer_step.h"

namespace teratron {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Chunk index of each parameter.
std::vector<int64_t> chunk_numbers(const std::vector<int64_t>& sizes, size_t parameters) {
  std::vector<int64_t> numbers;
  for (size_t chunk = 0; chunk < sizes.size(); ++chunk) {
    numbers.insert(numbers.end(), sizes[chunk], static_cast<int64_t>(chunk));
  }
  if (sizes.empty()) numbers.assign(parameters, 0);
  TERATRON_ASSERT(numbers.size() == parameters, "chunks have {} parameters, the model has {}", numbers.size(),
                  parameters);
  return numbers;
}

}  // namespace

FlatRange intersection(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

ParamAndGradBuffer::ParamAndGradBuffer(const std::vector<Parameter*>& parameters, const Options& options)
    : options_(options), last_microbatch_(std::max<size_t>(options.chunks.size(), 1)) {
  assign_ranges(parameters);
  allocate();
}

void ParamAndGradBuffer::assign_ranges(const std::vector<Parameter*>& parameters) {
  const std::vector<int64_t> chunks = chunk_numbers(options_.chunks, parameters.size());
  for (size_t i = parameters.size(); i-- > 0;) {
    Parameter* const parameter = parameters[i];
    if (parameter->options.grad_sum == GradSum::embedding) close_bucket();
    const int64_t before = entries_.empty() ? 0 : entries_.back().range.end;
    const int64_t bucket_begin = buckets_.empty() ? 0 : buckets_.back().range.end;
    const int64_t begin = round_up(std::max(before, bucket_begin), optimizer_block);
    const int64_t end = begin + parameter->tensor.numel();
    entries_.push_back({parameter, {begin, end}, chunks[i]});
    if (end - bucket_begin >= options_.bucket_size || parameter->options.grad_sum == GradSum::embedding)
      close_bucket();
  }
  close_bucket();
}

// The entries since the last bucket form the next one.
void ParamAndGradBuffer::close_bucket() {
  const auto first = bucket_of_entry_.size();
  if (first == entries_.size()) return;
  const int64_t begin = buckets_.empty() ? 0 : buckets_.back().range.end;
  // Slices of a bucket consist of whole optimizer blocks.
  const int64_t length =
      round_up(entries_.back().range.end - begin, optimizer_block * options_.data_parallel.size);
  const FlatRange range{begin, begin + length};
  bucket_of_entry_.resize(entries_.size(), buckets_.size());
  buckets_.push_back({.range = range, .parameters = static_cast<int64_t>(entries_.size() - first)});
  owned_.push_back(options_.sharded ? slice(range) : range);
}

void ParamAndGradBuffer::allocate() {
  if (entries_.empty()) return;
  const at::TensorOptions storage = entries_.front().parameter->tensor.options().requires_grad(false);
  const int64_t length = buckets_.back().range.end;
  gradients_ = at::zeros({length}, storage.dtype(main_grad_dtype(*entries_.front().parameter)));
  const bool gathered = options_.sharded && options_.data_parallel.size > 1;
  parameters_ = gathered ? options_.data_parallel.communicator->alloc_symmetric({length}, storage)
                         : at::empty({length}, storage);
  parameters_.zero_();
  for (size_t i = 0; i < entries_.size(); ++i) {
    Parameter& parameter = *entries_[i].parameter;
    const FlatRange& range = entries_[i].range;
    const at::Tensor view = range.of(parameters_).view(parameter.tensor.sizes());
    view.copy_(parameter.tensor.detach());
    parameter.tensor.set_data(view);
    parameter.main_grad = range.of(gradients_).view(parameter.tensor.sizes());
    parameter.on_grad_ready = [this, i] { on_grad_ready(i); };
    if (options_.sharded && options_.overlap_param_gather) {
      parameter.wait_param_gather = [this, i] { buckets_[bucket_of_entry_[i]].gather.wait(); };
    }
  }
}

FlatRange ParamAndGradBuffer::slice(const FlatRange& bucket) const {
  const int64_t length = bucket.size() / options_.data_parallel.size;
  const int64_t begin = bucket.begin + options_.data_parallel.rank * length;
  return {begin, begin + length};
}

double ParamAndGradBuffer::gradient_scale() const {
  return options_.average_in_collective ? 1.0 : 1.0 / static_cast<double>(options_.data_parallel.size);
}

void ParamAndGradBuffer::zero_grad() {
  for (const Entry& entry : entries_) entry.parameter->grad_is_stale = true;
  std::fill(last_microbatch_.begin(), last_microbatch_.end(), false);
  for (Bucket& bucket : buckets_) {
    bucket.ready = 0;
    bucket.started = false;
  }
}

void ParamAndGradBuffer::on_grad_ready(size_t entry) {
  if (!last_microbatch_[entries_[entry].chunk]) return;
  Bucket& bucket = buckets_[bucket_of_entry_[entry]];
  bucket.ready += 1;
  if (bucket.ready == bucket.parameters) start_reduction(bucket);
}

void ParamAndGradBuffer::start_reduction(Bucket& bucket) {
  bucket.started = true;
  for (const Entry& entry : entries_) {
    if (entry.range.begin >= bucket.range.begin && entry.range.end <= bucket.range.end) {
      finalize_grad(*entry.parameter);
    }
  }
  const Group& group = options_.data_parallel;
  if (group.size == 1) return;
  const ReduceOp op = options_.average_in_collective ? ReduceOp::avg : ReduceOp::sum;
  at::Tensor sent = bucket.range.of(gradients_);
  if (options_.reduce_in_bf16) sent = sent.to(at::kBFloat16);
  if (!options_.sharded) {
    bucket.result = sent;
    bucket.reduction = group.communicator->all_reduce(sent, op);
    return;
  }
  const at::Tensor part = slice(bucket.range).of(gradients_);
  bucket.result = options_.reduce_in_bf16 ? at::empty_like(part, sent.options()) : part;
  bucket.reduction = group.communicator->reduce_scatter(bucket.result, sent, op);
}

void ParamAndGradBuffer::finish_grad_sync(Bucket& bucket) {
  bucket.reduction.wait();
  if (bucket.result.defined() && options_.reduce_in_bf16) {
    (options_.sharded ? slice(bucket.range) : bucket.range).of(gradients_).copy_(bucket.result);
  }
  bucket.result.reset();
}

void ParamAndGradBuffer::finish_grad_sync() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.started) start_reduction(bucket);
  }
  for (Bucket& bucket : buckets_) finish_grad_sync(bucket);
}

void ParamAndGradBuffer::gather_params() {
  const Group& group = options_.data_parallel;
  if (!options_.sharded || group.size == 1) return;
  // Last bucket first: it holds the first layers.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    bucket->gather =
        group.communicator->all_gather(bucket->range.of(parameters_), slice(bucket->range).of(parameters_));
  }
  if (!options_.overlap_param_gather) finish_param_gather();
}

void ParamAndGradBuffer::finish_param_gather() {
  for (Bucket& bucket : buckets_) bucket.gather.wait();
}

}  // namespace teratron
