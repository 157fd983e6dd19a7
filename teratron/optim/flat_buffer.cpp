#include "teratron/optim/flat_buffer.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "teratron/kernels/optimizer_step.h"

namespace teratron {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatBuffer::FlatBuffer(std::vector<Parameter*> parameters, const Options& options) : options_(options) {
  lay_out(std::move(parameters));
  attach();
}

void FlatBuffer::lay_out(std::vector<Parameter*> parameters) {
  std::reverse(parameters.begin(), parameters.end());
  int64_t bucket_begin = 0;
  int64_t position = 0;
  int64_t first_entry = 0;
  for (Parameter* parameter : parameters) {
    const int64_t begin = round_up(position, optimizer_block);
    position = begin + parameter->tensor.numel();
    entries_.push_back({parameter, {begin, position}});
    if (position - bucket_begin >= options_.bucket_size || parameter == parameters.back()) {
      // A slice of a bucket is made of whole optimizer blocks.
      const int64_t length = round_up(position - bucket_begin, optimizer_block * options_.data_parallel.size);
      close_bucket(bucket_begin, bucket_begin + length, first_entry);
      position = bucket_begin = bucket_begin + length;
      first_entry = static_cast<int64_t>(entries_.size());
    }
  }
}

void FlatBuffer::close_bucket(int64_t begin, int64_t end, int64_t first_entry) {
  buckets_.push_back(
      {.range = {begin, end}, .parameters = static_cast<int64_t>(entries_.size()) - first_entry});
  bucket_of_entry_.resize(entries_.size(), buckets_.size() - 1);
  owned_.push_back(options_.sharded ? slice({begin, end}) : FlatRange{begin, end});
}

void FlatBuffer::attach() {
  if (entries_.empty()) return;
  const at::TensorOptions storage = entries_.front().parameter->tensor.options().requires_grad(false);
  const int64_t length = buckets_.back().range.end;
  gradients_ = at::zeros({length}, storage.dtype(gradient_dtype(*entries_.front().parameter)));
  parameters_ = at::zeros({length}, storage);
  for (size_t i = 0; i < entries_.size(); ++i) {
    Parameter& parameter = *entries_[i].parameter;
    const FlatRange& range = entries_[i].range;
    const at::Tensor view = parameters_.narrow(0, range.begin, range.size()).view(parameter.tensor.sizes());
    view.copy_(parameter.tensor.detach());
    parameter.tensor.set_data(view);
    parameter.main_grad = gradients_.narrow(0, range.begin, range.size()).view(parameter.tensor.sizes());
    parameter.on_gradient = [this, i] { gradient_arrived(buckets_[bucket_of_entry_[i]]); };
  }
}

FlatRange FlatBuffer::slice(const FlatRange& bucket) const {
  const int64_t length = bucket.size() / options_.data_parallel.size;
  const int64_t begin = bucket.begin + options_.data_parallel.rank * length;
  return {begin, begin + length};
}

void FlatBuffer::start_step() {
  if (gradients_.defined()) gradients_.zero_();
  last_microbatch_ = false;
  for (Bucket& bucket : buckets_) {
    bucket.arrived = 0;
    bucket.started = false;
  }
}

void FlatBuffer::gradient_arrived(Bucket& bucket) {
  if (!last_microbatch_) return;
  bucket.arrived += 1;
  if (bucket.arrived == bucket.parameters) start_reduction(bucket);
}

void FlatBuffer::start_reduction(Bucket& bucket) {
  bucket.started = true;
  const Group& group = options_.data_parallel;
  if (group.size == 1) return;
  const at::Tensor all = gradients_.narrow(0, bucket.range.begin, bucket.range.size());
  if (!options_.sharded) {
    bucket.work = group.communicator->all_reduce(all, ReduceOp::avg);
    return;
  }
  const FlatRange mine = slice(bucket.range);
  const at::Tensor part = gradients_.narrow(0, mine.begin, mine.size());
  bucket.work = group.communicator->reduce_scatter(part, all, ReduceOp::avg);
}

void FlatBuffer::finish_reduction() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.started) start_reduction(bucket);
  }
  for (Bucket& bucket : buckets_) bucket.work.wait();
}

void FlatBuffer::gather_parameters() {
  const Group& group = options_.data_parallel;
  if (!options_.sharded || group.size == 1) return;
  std::vector<Work> works;
  for (const Bucket& bucket : buckets_) {
    const FlatRange mine = slice(bucket.range);
    works.push_back(
        group.communicator->all_gather(parameters_.narrow(0, bucket.range.begin, bucket.range.size()),
                                       parameters_.narrow(0, mine.begin, mine.size())));
  }
  for (Work& work : works) work.wait();
}

}  // namespace teratron
