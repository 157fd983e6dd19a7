#include "teratron/optim/optimizer.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/kernels/common/reduce.h"

namespace teratron {

namespace {

// Whether the weights are below fp32.
bool needs_master(const ParamAndGradBuffer& buffer) {
  return buffer.parameters().scalar_type() != buffer.gradients().scalar_type();
}

// ParamGroup of each block of 64 elements.
at::Tensor block_groups(const ParamAndGradBuffer& buffer) {
  const int64_t blocks = buffer.gradients().numel() / optimizer_block;
  at::Tensor groups = at::zeros({blocks}, at::kByte);
  for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
    const int64_t first = entry.range.begin / optimizer_block;
    const int64_t end = (entry.range.end + optimizer_block - 1) / optimizer_block;
    groups.narrow(0, first, end - first).fill_(static_cast<int64_t>(entry.parameter->options.param_group));
  }
  return groups.to(buffer.gradients().device());
}

// Whether this rank counts the tensor in sums over the model: one of the ranks that hold it does, the first
// tensor-parallel rank if it is replicated, the first stage if it is tied.
bool counts(const Parameter& parameter, const Mesh& mesh) {
  if (parameter.shard().dim < 0 && mesh.group(Axis::tp).rank > 0) return false;
  return parameter.options.grad_sum != GradSum::embedding || mesh.embedding().rank == 0;
}

// Owned parts of the tensors that this rank counts, without alignment.
std::vector<FlatRange> counted_ranges(const ParamAndGradBuffer& buffer, const Mesh& mesh) {
  std::vector<FlatRange> counted;
  for (const FlatRange& owned : buffer.owned()) {
    for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
      const FlatRange part = intersection(owned, entry.range);
      if (part.size() > 0 && counts(*entry.parameter, mesh)) counted.push_back(part);
    }
  }
  return counted;
}

// Factor that makes gradients those of the mean loss.
at::Tensor unscale_factor(const Optimizer::Hyperparameters& hyper, const at::Tensor& like) {
  const at::Tensor scale = at::full_like(like, 1.0 / hyper.loss_scale);
  return hyper.num_tokens.defined() ? scale / hyper.num_tokens : scale;
}

bool counts_all(const ParamAndGradBuffer& buffer, const Mesh& mesh) {
  return std::all_of(buffer.entries().begin(), buffer.entries().end(),
                     [&](const ParamAndGradBuffer::Entry& entry) { return counts(*entry.parameter, mesh); });
}

}  // namespace

StateTensor StateTensor::part(int64_t begin, int64_t end) const {
  StateTensor part = *this;
  part.values = values.slice(0, begin, end);
  if (remainder.defined()) part.remainder = remainder.slice(0, begin, end);
  return part;
}

at::Tensor StateTensor::read() const {
  return remainder.defined() ? join_master_weights(values, remainder) : values;
}

void StateTensor::write(const at::Tensor& new_values) const {
  if (!remainder.defined()) {
    values.copy_(new_values);
  } else {
    split_master_weights(new_values.to(values.device()), values, remainder);
  }
}

Optimizer::Optimizer(ParamAndGradBuffer& buffer, const Mesh& mesh, const OptimizerOptions& options)
    : buffer_(buffer),
      options_(options),
      tensor_parallel_(mesh.group(Axis::tp)),
      embedding_group_(mesh.embedding()) {
  norm_group_ = buffer.options().sharded ? mesh.group({Axis::tp, Axis::pp, Axis::dp})
                                         : mesh.group({Axis::tp, Axis::pp});
  counted_ranges_ = counted_ranges(buffer, mesh);
  // Alignment is zero and does not change a norm: sum few large ranges instead of one per tensor.
  norm_ranges_ = counts_all(buffer, mesh) ? buffer.owned() : counted_ranges_;
  const at::TensorOptions state = buffer.gradients().options();
  const at::Tensor groups = block_groups(buffer);
  for (const FlatRange& range : buffer.owned()) {
    slices_.push_back(
        {.range = range,
         .weights = master_weights(range),
         .moments = make_moments(range.size()),
         .groups = groups.narrow(0, range.begin / optimizer_block, range.size() / optimizer_block)});
  }
  scalars_ = {.lr = at::zeros({param_groups}, state.dtype(at::kDouble)),
              .weight_decay = at::zeros({param_groups}, state.dtype(at::kDouble)),
              .step = at::zeros({1}, state.dtype(at::kLong))};
}

std::vector<Optimizer::Moment> Optimizer::make_moments(int64_t size) const {
  const auto zeros = [&] { return at::zeros({size}, buffer_.gradients().options()); };
  if (options_.kind == OptimizerKind::adam) return {{"exp_avg", zeros()}, {"exp_avg_sq", zeros()}};
  if (options_.sgd_momentum == 0.0) return {};
  return {{"momentum_buffer", zeros()}};
}

MasterWeights Optimizer::master_weights(const FlatRange& range) const {
  const at::Tensor model = range.of(buffer_.parameters());
  if (!needs_master(buffer_)) return {.param = model};
  if (model.scalar_type() == at::kBFloat16)
    return {.param = model, .remainder = at::zeros_like(model, model.options().dtype(at::kShort))};
  return {.param = model.to(buffer_.gradients().scalar_type()), .copy = model};
}

void Optimizer::all_reduce_replicated_grads() {
  if (tensor_parallel_.size == 1) return;
  std::vector<at::Tensor> parts;
  for (const ParamAndGradBuffer::Entry& entry : buffer_.entries()) {
    if (entry.parameter->options.grad_sum == GradSum::tensor_parallel)
      parts.push_back(entry.parameter->main_grad.view(-1));
  }
  if (parts.empty()) return;
  const at::Tensor packed = at::cat(parts);
  tensor_parallel_.communicator->all_reduce(packed, ReduceOp::sum).wait();
  int64_t position = 0;
  for (const at::Tensor& part : parts) {
    part.copy_(packed.narrow(0, position, part.numel()));
    position += part.numel();
  }
}

// Owned slices only: a tied tensor has a separate bucket, so both stages own the same ones.
void Optimizer::all_reduce_tied_embedding_grads() {
  if (embedding_group_.size == 1) return;
  for (const ParamAndGradBuffer::Entry& entry : buffer_.entries()) {
    if (entry.parameter->options.grad_sum != GradSum::embedding) continue;
    for (const FlatRange& owned : buffer_.owned()) {
      const FlatRange part = intersection(owned, entry.range);
      if (part.size() == 0) continue;
      embedding_group_.communicator->all_reduce(part.of(buffer_.gradients()), ReduceOp::sum).wait();
    }
  }
}

at::Tensor Optimizer::sum_over_model(const std::vector<FlatRange>& ranges,
                                     const std::function<at::Tensor(const FlatRange&)>& of_range) const {
  at::Tensor total = at::zeros({1}, buffer_.gradients().options().dtype(at::kDouble));
  for (const FlatRange& range : ranges) total.add_(of_range(range));
  if (norm_group_.size > 1) norm_group_.communicator->all_reduce(total, ReduceOp::sum).wait();
  return total;
}

GradStats Optimizer::step(const Hyperparameters& hyper) {
  buffer_.finish_param_gather();
  all_reduce_replicated_grads();
  all_reduce_tied_embedding_grads();
  const at::Tensor& gradients = buffer_.gradients();
  const at::Tensor squares = sum_over_model(
      norm_ranges_, [&](const FlatRange& range) { return sum_of_squares(range.of(gradients)); });
  const at::Tensor unscale = unscale_factor(hyper, squares);
  GradStats stats{.grad_norm = squares.sqrt().mul_(unscale)};
  at::Tensor finite = stats.grad_norm.isfinite();
  if (hyper.loss.defined()) finite = finite.logical_and(hyper.loss.isfinite());
  stats.found_inf = finite.logical_not().to(at::kFloat);
  if (options_.count_zeros) {
    stats.num_zeros = sum_over_model(
        counted_ranges_, [&](const FlatRange& range) { return count_zeros(range.of(gradients)); });
  }
  scalars_.grad_scale = clipped(unscale, stats.grad_norm).to(at::kFloat);
  set_scalars(hyper, stats);
  advance_step_(scalars_.step, scalars_.found_inf);
  for (const Slice& slice : slices_) step_slice(slice);
  buffer_.gather_params();
  return stats;
}

at::Tensor Optimizer::clipped(const at::Tensor& scale, const at::Tensor& grad_norm) const {
  if (options_.clip_grad == 0.0) return scale;
  return scale * at::clamp_max(options_.clip_grad / (grad_norm + 1e-6), 1.0);
}

void Optimizer::set_scalars(const Hyperparameters& hyper, const GradStats& stats) {
  scalars_.found_inf = options_.skip_nonfinite ? stats.found_inf : at::Tensor();
  scalars_.lr.fill_(hyper.lr);
  if (hyper.decoupled_lr) {
    scalars_.lr.narrow(0, static_cast<int64_t>(ParamGroup::decoupled_lr), 1).fill_(*hyper.decoupled_lr);
  }
  // Stays 0 for group 1.
  static_assert(static_cast<int64_t>(ParamGroup::no_weight_decay) == 1 && param_groups == 3);
  scalars_.weight_decay.slice(0, 0, param_groups, 2).fill_(hyper.weight_decay);
}

void Optimizer::step_slice(const Slice& slice) {
  const FlatRange& range = slice.range;
  const at::Tensor gradient = range.of(buffer_.gradients());
  if (options_.kind == OptimizerKind::adam) {
    adam_step_({.weights = slice.weights,
                .grad = gradient,
                .exp_avg = slice.moments[0].values,
                .exp_avg_sq = slice.moments[1].values,
                .groups = slice.groups},
               scalars_, options_.adam);
    return;
  }
  sgd_step_({.weights = slice.weights,
             .grad = gradient,
             .momentum_buffer = slice.moments.empty() ? at::Tensor() : slice.moments[0].values,
             .groups = slice.groups},
            scalars_, options_.sgd_momentum);
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const Slice& slice : slices_) {
    for (const Moment& moment : slice.moments) bytes += static_cast<int64_t>(moment.values.nbytes());
    if (slice.weights.copy.defined()) bytes += static_cast<int64_t>(slice.weights.param.nbytes());
    if (slice.weights.remainder.defined()) bytes += static_cast<int64_t>(slice.weights.remainder.nbytes());
  }
  return bytes;
}

int64_t Optimizer::steps() const {
  return scalars_.step.item<int64_t>();
}

void Optimizer::set_steps(int64_t steps) {
  scalars_.step.fill_(steps);
}

void Optimizer::add_state(const Slice& slice, const ParamAndGradBuffer::Entry& entry,
                          std::vector<StateTensor>& out) const {
  const FlatRange part = intersection(slice.range, entry.range);
  if (part.size() == 0) return;
  const FlatRange local{part.begin - entry.range.begin, part.end - entry.range.begin};
  const auto add = [&](const char* kind, const at::Tensor& values, const at::Tensor& remainder = {}) {
    const StateTensor whole{fmt::format("optimizer.{}.{}", kind, entry.parameter->name),
                            entry.parameter->shard(), local, values, remainder};
    out.push_back(whole.part(part.begin - slice.range.begin, part.end - slice.range.begin));
  };
  if (needs_master(buffer_)) add("param", slice.weights.param, slice.weights.remainder);
  for (const Moment& moment : slice.moments) add(moment.name, moment.values);
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> out;
  for (const Slice& slice : slices_) {
    for (const ParamAndGradBuffer::Entry& entry : buffer_.entries()) add_state(slice, entry, out);
  }
  return out;
}

void Optimizer::reset_master_weights() {
  for (const Slice& slice : slices_) {
    const auto& [param, remainder, copy] = slice.weights;
    if (remainder.defined()) remainder.zero_();
    if (copy.defined()) param.copy_(copy);
  }
}

at::Tensor Optimizer::parameter_norm() const {
  return sum_over_model(
             norm_ranges_,
             [&](const FlatRange& range) { return sum_of_squares(range.of(buffer_.parameters())); })
      .sqrt();
}

}  // namespace teratron
