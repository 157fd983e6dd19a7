#include "teratron/optim/optimizer.h"

#include <algorithm>
#include <map>

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

// Owned parts of the tensors that this rank counts, without alignment.
std::vector<FlatRange> counted_ranges(const ParamAndGradBuffer& buffer) {
  std::vector<FlatRange> counted;
  for (const FlatRange& owned : buffer.owned()) {
    for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
      const FlatRange part = intersection(owned, entry.range);
      if (part.size() > 0 && entry.counts) counted.push_back(part);
    }
  }
  return counted;
}

// Factor that makes gradients those of the mean loss.
at::Tensor unscale_factor(const Optimizer::Hyperparameters& hyper, const at::Tensor& like) {
  const at::Tensor scale = at::full_like(like, 1.0 / hyper.loss_scale);
  return hyper.num_tokens.defined() ? scale / hyper.num_tokens : scale;
}

bool counts_all(const ParamAndGradBuffer& buffer) {
  return std::all_of(buffer.entries().begin(), buffer.entries().end(),
                     [](const ParamAndGradBuffer::Entry& entry) { return entry.counts; });
}

MasterWeights master_weights(const ParamAndGradBuffer& buffer, const FlatRange& range) {
  const at::Tensor model = range.of(buffer.parameters());
  if (!needs_master(buffer)) return {.param = model};
  if (model.scalar_type() == at::kBFloat16)
    return {.param = model, .remainder = at::zeros_like(model, model.options().dtype(at::kShort))};
  return {.param = model.to(buffer.gradients().scalar_type()), .copy = model};
}

// Owned slices only: a tied tensor has a separate bucket, so all its stages own the same ones.
void all_reduce_tied_grads(const ParamAndGradBuffer& buffer) {
  std::map<std::string, const ParamAndGradBuffer::Entry*> tied;  // in the same order on all stages
  for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
    if (entry.tied.size > 1) tied[entry.parameter->name] = &entry;
  }
  for (const auto& [_, entry] : tied) {
    for (const FlatRange& owned : buffer.owned()) {
      const FlatRange part = intersection(owned, entry->range);
      if (part.size() == 0) continue;
      entry->tied.communicator->all_reduce(part.of(buffer.gradients()), ReduceOp::sum).wait();
    }
  }
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

Optimizer::Optimizer(ParamAndGradBuffers& buffers, const Mesh& mesh, const OptimizerOptions& options)
    : buffers_(buffers), mesh_(mesh), options_(options) {
  for (ParamAndGradBuffer& buffer : buffers) parts_.push_back(make_part(buffer));
  const at::TensorOptions f64 = buffers[0].gradients().options().dtype(at::kDouble);
  scalars_ = {.lr = at::zeros({param_groups}, f64),
              .weight_decay = at::zeros({param_groups}, f64),
              .step = at::zeros({1}, f64.dtype(at::kLong))};
}

Optimizer::Part Optimizer::make_part(ParamAndGradBuffer& buffer) const {
  const AxisSet axes = buffer.replicas().axes;
  const std::vector<FlatRange> counted = counted_ranges(buffer);
  Part part{.buffer = buffer,
            .norm_group = mesh_.group(buffer.options().sharded ? complement(axes) | axes : complement(axes)),
            // Alignment is zero and does not change a norm: sum few large ranges instead of one per tensor.
            .norm_ranges = counts_all(buffer) ? buffer.owned() : counted,
            .counted_ranges = counted};
  const at::Tensor groups = block_groups(buffer);
  for (const FlatRange& range : buffer.owned()) {
    part.slices.push_back(
        {.range = range,
         .weights = master_weights(buffer, range),
         .moments = make_moments(range.size(), buffer.gradients().options()),
         .groups = groups.narrow(0, range.begin / optimizer_block, range.size() / optimizer_block)});
  }
  return part;
}

std::vector<Optimizer::Moment> Optimizer::make_moments(int64_t size, const at::TensorOptions& options) const {
  const auto zeros = [&] { return at::zeros({size}, options); };
  if (options_.kind == OptimizerKind::adam) return {{"exp_avg", zeros()}, {"exp_avg_sq", zeros()}};
  if (options_.sgd_momentum == 0.0) return {};
  return {{"momentum_buffer", zeros()}};
}

void Optimizer::all_reduce_partial_grads(const ParamAndGradBuffer& buffer) const {
  std::map<AxisSet, std::vector<at::Tensor>> by_axes;
  for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
    by_axes[entry.parameter->options.grad_sum].push_back(entry.parameter->main_grad.view(-1));
  }
  for (const auto& [axes, parts] : by_axes) {
    const Group& group = mesh_.group(axes);
    if (group.size == 1) continue;
    const at::Tensor packed = at::cat(parts);
    group.communicator->all_reduce(packed, ReduceOp::sum).wait();
    int64_t position = 0;
    for (const at::Tensor& part : parts) {
      part.copy_(packed.narrow(0, position, part.numel()));
      position += part.numel();
    }
  }
}

at::Tensor Optimizer::sum_over_model(
    std::vector<FlatRange> Part::* ranges,
    const std::function<at::Tensor(const FlatRange&, const ParamAndGradBuffer&)>& of_range) const {
  at::Tensor sum;
  for (const Part& part : parts_) {
    at::Tensor total = at::zeros({1}, part.buffer.gradients().options().dtype(at::kDouble));
    for (const FlatRange& range : part.*ranges) total.add_(of_range(range, part.buffer));
    if (part.norm_group.size > 1) part.norm_group.communicator->all_reduce(total, ReduceOp::sum).wait();
    sum = sum.defined() ? sum.add_(total) : total;
  }
  return sum;
}

GradStats Optimizer::step(const Hyperparameters& hyper) {
  buffers_.finish_param_gather();
  for (const ParamAndGradBuffer& buffer : buffers_) {
    all_reduce_partial_grads(buffer);
    all_reduce_tied_grads(buffer);
  }
  const at::Tensor squares =
      sum_over_model(&Part::norm_ranges, [](const FlatRange& range, const ParamAndGradBuffer& buffer) {
        return sum_of_squares(range.of(buffer.gradients()));
      });
  const at::Tensor unscale = unscale_factor(hyper, squares);
  GradStats stats{.grad_norm = squares.sqrt().mul_(unscale)};
  at::Tensor finite = stats.grad_norm.isfinite();
  if (hyper.loss.defined()) finite = finite.logical_and(hyper.loss.isfinite());
  stats.found_inf = finite.logical_not().to(at::kFloat);
  if (options_.count_zeros) {
    stats.num_zeros =
        sum_over_model(&Part::counted_ranges, [](const FlatRange& range, const ParamAndGradBuffer& buffer) {
          return count_zeros(range.of(buffer.gradients()));
        });
  }
  scalars_.grad_scale = clipped(unscale, stats.grad_norm).to(at::kFloat);
  set_scalars(hyper, stats);
  advance_step_(scalars_.step, scalars_.found_inf);
  for (const Part& part : parts_) {
    for (const Slice& slice : part.slices) step_slice(slice, slice.range.of(part.buffer.gradients()));
  }
  buffers_.gather_params();
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

void Optimizer::step_slice(const Slice& slice, const at::Tensor& gradient) {
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
  const auto add = [&bytes](const at::Tensor& tensor) { bytes += static_cast<int64_t>(tensor.nbytes()); };
  for (const Part& part : parts_) {
    for (const Slice& slice : part.slices) {
      for (const Moment& moment : slice.moments) add(moment.values);
      if (slice.weights.copy.defined()) add(slice.weights.param);
      if (slice.weights.remainder.defined()) add(slice.weights.remainder);
    }
  }
  return bytes;
}

int64_t Optimizer::steps() const {
  return scalars_.step.item<int64_t>();
}

void Optimizer::set_steps(int64_t steps) {
  scalars_.step.fill_(steps);
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> out;
  for (const Part& part : parts_) {
    for (const Slice& slice : part.slices) {
      for (const ParamAndGradBuffer::Entry& entry : part.buffer.entries()) {
        const FlatRange both = intersection(slice.range, entry.range);
        if (both.size() == 0) continue;
        const FlatRange local{both.begin - entry.range.begin, both.end - entry.range.begin};
        const auto add = [&](const char* kind, const at::Tensor& values, const at::Tensor& remainder = {}) {
          const StateTensor whole{fmt::format("optimizer.{}.{}", kind, entry.parameter->name),
                                  entry.parameter->shard(), local, values, remainder};
          out.push_back(whole.part(both.begin - slice.range.begin, both.end - slice.range.begin));
        };
        if (needs_master(part.buffer)) add("param", slice.weights.param, slice.weights.remainder);
        for (const Moment& moment : slice.moments) add(moment.name, moment.values);
      }
    }
  }
  return out;
}

void Optimizer::reset_master_weights() {
  for (const Part& part : parts_) {
    for (const Slice& slice : part.slices) {
      const auto& [param, remainder, copy] = slice.weights;
      if (remainder.defined()) remainder.zero_();
      if (copy.defined()) param.copy_(copy);
    }
  }
}

at::Tensor Optimizer::parameter_norm() const {
  return sum_over_model(&Part::norm_ranges,
                        [](const FlatRange& range, const ParamAndGradBuffer& buffer) {
                          return sum_of_squares(range.of(buffer.parameters()));
                        })
      .sqrt();
}

}  // namespace teratron
