#include "teratron/optim/optimizer.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/base/tensor_dtype.h"
#include "teratron/kernels/common/reduce.h"
#include "teratron/optim/finalize_grads.h"
#include "teratron/optim/matrix_rule.h"

namespace teratron {

namespace {

// Whether the weights are below fp32.
bool needs_master(const ParamAndGradBuffer& buffer) {
  return buffer.parameters().scalar_type() != buffer.gradients().scalar_type();
}

// Owned parts of what this rank counts, without alignment.
std::vector<FlatRange> counted_ranges(const ParamAndGradBuffer& buffer) {
  std::vector<FlatRange> counted;
  for (const FlatRange& owned : buffer.owned()) {
    for (const ParamAndGradBuffer::Entry& entry : buffer.entries_in(owned)) {
      const FlatRange part = intersection(owned, entry.counted());
      if (part.size() > 0) counted.push_back(part);
    }
  }
  return counted;
}

// Factor that makes gradients those of the mean loss.
at::Tensor unscale_factor(const Optimizer::Hyperparameters& hyper, const at::Tensor& like) {
  const at::Tensor scale = at::full_like(like, 1.0 / hyper.loss_scale);
  return hyper.num_tokens.defined() ? scale / hyper.num_tokens : scale;
}

// The blocks of a range that begins with one.
FlatRange blocks_of(const FlatRange& range) {
  return {range.begin / optimizer_block, (range.end + optimizer_block - 1) / optimizer_block};
}

bool counts_all(const ParamAndGradBuffer& buffer) {
  return std::all_of(
      buffer.entries().begin(), buffer.entries().end(),
      [](const ParamAndGradBuffer::Entry& entry) { return entry.counted().size() == entry.range.size(); });
}

MasterWeights master_weights(const ParamAndGradBuffer& buffer, const FlatRange& range) {
  const at::Tensor model = range.of(buffer.parameters());
  if (!needs_master(buffer)) return {.param = model};
  if (model.scalar_type() == at::kBFloat16)
    return {.param = model, .remainder = at::zeros_like(model, model.options().dtype(at::kShort))};
  return {.param = model.to(buffer.gradients().scalar_type()), .copy = model};
}

std::vector<at::Tensor> zero_states(const std::vector<RuleState>& states, int64_t size,
                                    const at::TensorOptions& gradients) {
  std::vector<at::Tensor> zeros;
  for (const RuleState& state : states) {
    const at::ScalarType type = gradients.dtype() == at::kDouble ? at::kDouble : *scalar_type_of(state.dtype);
    zeros.push_back(at::zeros({size}, gradients.dtype(type)));
  }
  return zeros;
}

// What the rule steps at once: owned ranges, or the matrices in them.
std::vector<FlatRange> step_ranges(const ParamAndGradBuffer& buffer) {
  if (buffer.rule().unit() == OptimizerRule::Unit::element) return buffer.owned();
  std::vector<FlatRange> matrices;
  for (const FlatRange& owned : buffer.owned()) {
    for (const ParamAndGradBuffer::Entry& entry : buffer.entries_in(owned)) matrices.push_back(entry.range);
  }
  return matrices;
}

// Writes nothing if the values are those written last. Most are equal to the first: one launch fills all.
void write_changes(const at::Tensor& device, std::vector<double>& written,
                   const std::vector<double>& values) {
  if (values == written) return;
  written = values;
  device.fill_(values[0]);
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] != values[0]) device.narrow(0, static_cast<int64_t>(i), 1).fill_(values[i]);
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
  scalars_.step = at::zeros({1}, buffers[0].gradients().options().dtype(at::kLong));
  allocate_group_scalars();
}

void Optimizer::allocate_group_scalars() {
  TERATRON_ASSERT(groups_.size() <= 256, "{} parameter groups", groups_.size());
  const at::TensorOptions f64 = buffers_[0].gradients().options().dtype(at::kDouble);
  const auto rows = static_cast<int64_t>(groups_.size());
  scalars_.lr = at::zeros({rows}, f64);
  scalars_.weight_decay = at::zeros({rows}, f64);
  lr_.clear();
  weight_decay_.clear();
}

void Optimizer::update_groups() {
  groups_.clear();
  for (const Part& part : parts_) part.groups.copy_(block_groups(part.buffer));
  allocate_group_scalars();
}

Optimizer::Part Optimizer::make_part(ParamAndGradBuffer& buffer) {
  const AxisSet axes = buffer.replicas().axes;
  const std::vector<FlatRange> counted = counted_ranges(buffer);
  Part part{.buffer = buffer,
            .states = buffer.rule().states(),
            .norm_group = mesh_.group(buffer.options().sharded ? complement(axes) | axes : complement(axes)),
            // Alignment is zero and does not change a norm: sum few large ranges instead of one per tensor.
            .norm_ranges = counts_all(buffer) ? buffer.owned() : counted,
            .counted_ranges = counted,
            .groups = block_groups(buffer)};
  for (const FlatRange& range : step_ranges(buffer)) {
    OptimizerRule::Slice slice{.weights = master_weights(buffer, range),
                               .grad = range.of(buffer.gradients()),
                               .states = zero_states(part.states, range.size(), buffer.gradients().options()),
                               .groups = blocks_of(range).of(part.groups)};
    if (buffer.rule().unit() == OptimizerRule::Unit::matrix) {
      slice.parameter = buffer.entries_in(range)[0].parameter;
      slice.parts = ranks_of_parts(*slice.parameter, mesh_);
    }
    part.slices.push_back({range, std::move(slice)});
  }
  return part;
}

at::Tensor Optimizer::block_groups(const ParamAndGradBuffer& buffer) {
  at::Tensor rows = at::zeros({buffer.gradients().numel() / optimizer_block}, at::kByte);
  for (const ParamAndGradBuffer::Entry& entry : buffer.entries()) {
    const auto found = std::ranges::find(groups_, entry.parameter->options.param_group);
    const int64_t row = found - groups_.begin();
    if (found == groups_.end()) groups_.push_back(entry.parameter->options.param_group);
    blocks_of(entry.range).of(rows).fill_(row);
  }
  return rows.to(buffer.gradients().device());
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
  finalize_grads(buffers_, mesh_);
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
    for (const Slice& slice : part.slices) part.buffer.rule().step(slice.tensors, scalars_);
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
  std::vector<double> lr, weight_decay;
  for (const ParamGroup& group : groups_) {
    lr.push_back(group.lr_mult * (group.decoupled ? hyper.decoupled_lr.value_or(hyper.lr) : hyper.lr));
    weight_decay.push_back(group.weight_decay_mult * hyper.weight_decay);
  }
  write_changes(scalars_.lr, lr_, lr);
  write_changes(scalars_.weight_decay, weight_decay_, weight_decay);
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  const auto add = [&bytes](const at::Tensor& tensor) { bytes += static_cast<int64_t>(tensor.nbytes()); };
  for (const Part& part : parts_) {
    for (const Slice& slice : part.slices) {
      const auto& [param, remainder, copy] = slice.tensors.weights;
      for (const at::Tensor& state : slice.tensors.states) add(state);
      if (copy.defined()) add(param);
      if (remainder.defined()) add(remainder);
    }
  }
  return bytes;
}

bool Optimizer::has_state() const {
  return std::ranges::any_of(
      parts_, [](const Part& part) { return !part.states.empty() || needs_master(part.buffer); });
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
      for (const ParamAndGradBuffer::Entry& entry : part.buffer.entries_in(slice.range)) {
        const FlatRange both = intersection(slice.range, entry.range);
        const FlatRange local{both.begin - entry.range.begin, both.end - entry.range.begin};
        const auto add = [&](std::string_view name, const at::Tensor& values, const at::Tensor& remainder) {
          const StateTensor whole{fmt::format("optimizer.{}.{}", name, entry.parameter->name),
                                  entry.parameter->shard(), local, values, remainder};
          out.push_back(whole.part(both.begin - slice.range.begin, both.end - slice.range.begin));
        };
        const MasterWeights& weights = slice.tensors.weights;
        if (needs_master(part.buffer)) add("param", weights.param, weights.remainder);
        for (size_t i = 0; i < part.states.size(); ++i) add(part.states[i].name, slice.tensors.states[i], {});
      }
    }
  }
  return out;
}

void Optimizer::reset_master_weights() {
  for (const Part& part : parts_) {
    for (const Slice& slice : part.slices) {
      const auto& [param, remainder, copy] = slice.tensors.weights;
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
