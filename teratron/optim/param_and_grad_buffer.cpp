#include "teratron/optim/param_and_grad_buffer.h"

#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/comm/part_communicator.h"
#include "teratron/kernels/optimizer/optimizer_step.h"

namespace teratron {

namespace {

/// In the order of the buffer.
std::vector<BucketItem> items_of(const std::vector<ParamAndGradBuffer::Entry>& entries) {
  std::vector<BucketItem> items;
  for (const ParamAndGradBuffer::Entry& entry : entries)
    items.push_back({entry.parameter->name, entry.parameter->tensor.numel(), entry.tied.size > 1});
  return items;
}

// Slices of a bucket consist of whole optimizer blocks.
BucketRules rules_of(const ParamAndGradBuffer::Options& options, int64_t replicas,
                     const OptimizerRule& rule) {
  return {.bucket_size = options.bucket_size,
          .block = optimizer_block,
          .ranks = replicas,
          .whole = options.sharded && rule.unit() == OptimizerRule::Unit::matrix};
}

}  // namespace

FlatRange intersection(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

FlatRange ParamAndGradBuffer::Entry::counted() const {
  if (!counts) return {range.begin, range.begin};
  return {range.begin, parameter->shard().counts_shared() ? range.end : shared().begin};
}

ParamAndGradBuffer::ParamAndGradBuffer(std::vector<Entry> entries, const Replicas& replicas,
                                       const at::TensorOptions& storage, const Options& options,
                                       std::shared_ptr<const OptimizerRule> rule)
    : options_(options),
      replicas_(replicas),
      rule_(std::move(rule)),
      entries_(std::move(entries)),
      ready_(entries_.size()) {
  std::reverse(entries_.begin(), entries_.end());
  assign_ranges();
  allocate(storage);
}

void ParamAndGradBuffer::assign_ranges() {
  const std::vector<BucketItem> items = items_of(entries_);
  const BucketLayout layout = lay_out(items, rules_of(options_, replicas_.group.size, *rule_));
  for (size_t i = 0; i < entries_.size(); ++i)
    entries_[i].range = {layout.begins[i], layout.begins[i] + items[i].elements};
  std::ranges::stable_sort(entries_, {},
                           [](const Entry& entry) { return entry.range.begin; });  // within buckets
  for (const BucketLayout::Bucket& bucket : layout.buckets) {
    const FlatRange range{bucket.begin, bucket.begin + bucket.elements};
    bucket_of_entry_.resize(bucket.end, buckets_.size());
    buckets_.push_back({.range = range,
                        .group = named_group(replicas_.group, bucket.name),
                        .parameters = bucket.end - bucket.first});
    owned_.push_back(options_.sharded ? slice(range) : range);
  }
}

std::vector<std::string> ParamAndGradBuffer::describe_buckets(const std::vector<Entry>& entries,
                                                              int64_t replicas, const Options& options,
                                                              const OptimizerRule& rule) {
  std::vector<BucketItem> items = items_of(entries);
  std::reverse(items.begin(), items.end());
  return teratron::describe_buckets(items, lay_out(items, rules_of(options, replicas, rule)));
}

void ParamAndGradBuffer::allocate(const at::TensorOptions& storage) {
  const int64_t length = buckets_.empty() ? 0 : buckets_.back().range.end;
  gradients_ =
      at::zeros({length}, storage.dtype(main_grad_dtype(c10::typeMetaToScalarType(storage.dtype()))));
  const bool gathered = options_.sharded && replicas_.group.size > 1 && length > 0;
  parameters_ = gathered ? replicas_.group.communicator->alloc_symmetric({length}, storage)
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

std::span<const ParamAndGradBuffer::Entry> ParamAndGradBuffer::entries_in(const FlatRange& range) const {
  const auto begin =
      std::ranges::upper_bound(entries_, range.begin, {}, [](const Entry& entry) { return entry.range.end; });
  const auto end = std::ranges::lower_bound(begin, entries_.end(), range.end, {},
                                            [](const Entry& entry) { return entry.range.begin; });
  return {begin, end};
}

FlatRange ParamAndGradBuffer::slice(const FlatRange& bucket) const {
  const int64_t length = bucket.size() / replicas_.group.size;
  const int64_t begin = bucket.begin + replicas_.group.rank * length;
  return {begin, begin + length};
}

void ParamAndGradBuffer::zero_grad() {
  for (const Entry& entry : entries_) {
    entry.parameter->grad_is_stale = true;
    entry.parameter->pending_grads = 0;  // uses that did not reach the last loss
  }
  last_microbatch_.clear();
  ready_.assign(entries_.size(), false);
  for (Bucket& bucket : buckets_) bucket.ready = 0;
  started_ = 0;
}

void ParamAndGradBuffer::set_last_microbatch(int64_t chunk) {
  const auto index = static_cast<size_t>(chunk);
  if (last_microbatch_.size() <= index) last_microbatch_.resize(index + 1);
  last_microbatch_[index] = true;
}

void ParamAndGradBuffer::on_grad_ready(size_t entry) {
  const auto chunk = static_cast<size_t>(entries_[entry].chunk);
  if (chunk >= last_microbatch_.size() || !last_microbatch_[chunk]) return;
  Bucket& bucket = buckets_[bucket_of_entry_[entry]];
  TERATRON_ASSERT(bucket_of_entry_[entry] >= started_, "{} gets a gradient after its reduction has started",
                  entries_[entry].parameter->name);
  if (!ready_[entry]) bucket.ready += 1;
  ready_[entry] = true;
  if (bucket.ready < bucket.parameters) return;
  if (on_complete_) return on_complete_();
  while (start_next_reduction()) {
  }
}

bool ParamAndGradBuffer::start_next_reduction(bool incomplete) {
  if (started_ == buckets_.size()) return false;
  Bucket& bucket = buckets_[started_];
  if (!incomplete && bucket.ready < bucket.parameters) return false;
  start_reduction(bucket);
  return true;
}

std::vector<int64_t> ParamAndGradBuffer::last_positions() const {
  std::vector<int64_t> positions(buckets_.size(), std::numeric_limits<int64_t>::max());
  for (size_t i = 0; i < entries_.size(); ++i) {
    int64_t& last = positions[bucket_of_entry_[i]];
    last = std::min(last, entries_[i].position);
  }
  return positions;
}

void ParamAndGradBuffer::start_reduction(Bucket& bucket) {
  started_ += 1;
  for (const Entry& entry : entries_) {
    if (entry.range.begin >= bucket.range.begin && entry.range.end <= bucket.range.end) {
      finalize_grad(*entry.parameter);
    }
  }
  const Group& group = bucket.group;
  if (options_.average_in_collective && replicas_.share != 1.0) {
    bucket.range.of(gradients_).mul_(replicas_.share);
  }
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
  while (start_next_reduction(/*incomplete=*/true)) {
  }
  for (Bucket& bucket : buckets_) finish_grad_sync(bucket);
}

void ParamAndGradBuffer::gather_params() {
  if (!options_.sharded || replicas_.group.size == 1) return;
  // Last bucket first: it holds the first layers.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    bucket->gather = bucket->group.communicator->all_gather(bucket->range.of(parameters_),
                                                            slice(bucket->range).of(parameters_));
  }
  if (!options_.overlap_param_gather) finish_param_gather();
}

void ParamAndGradBuffer::finish_param_gather() {
  for (Bucket& bucket : buckets_) bucket.gather.wait();
}

}  // namespace teratron
