#include "teratron/optim/optimizer.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/kernels/common/reduce.h"

namespace teratron {

namespace {

// A block's group of hyperparameters is a sum of these.
enum GroupBit : int64_t { not_decayed = 1, decoupled = 2, groups_in_all = 4 };

int64_t group_of(const Parameter& parameter) {
  const bool embedding_or_output =
      parameter.name == "embedding.word_embeddings.weight" || parameter.name == "output_layer.weight";
  int64_t group = 0;
  if (!parameter.options.weight_decay) group += not_decayed;
  if (embedding_or_output) group += decoupled;
  return group;
}

// The weights are less than fp32.
bool needs_master(const FlatBuffer& buffer) {
  return buffer.parameters().scalar_type() != buffer.gradients().scalar_type();
}

// The group of each block of 64 elements of the whole buffer.
at::Tensor block_groups(const FlatBuffer& buffer) {
  const int64_t blocks = buffer.gradients().numel() / optimizer_block;
  at::Tensor groups = at::zeros({blocks}, at::kByte);
  for (const FlatBuffer::Entry& entry : buffer.entries()) {
    const int64_t first = entry.range.begin / optimizer_block;
    const int64_t end = (entry.range.end + optimizer_block - 1) / optimizer_block;
    groups.narrow(0, first, end - first).fill_(group_of(*entry.parameter));
  }
  return groups.to(buffer.gradients().device());
}

// Of the ranks that hold a tensor, one counts it: the first tensor-parallel rank one that is replicated there, the
// first stage one that is tied over stages.
bool counts(const Parameter& parameter, const Mesh& mesh) {
  if (parameter.shard().dim < 0 && mesh.group(Axis::tp).rank > 0) return false;
  return !parameter.options.tied_over_stages || mesh.embedding().rank == 0;
}

// Owned parts of the tensors that this rank counts, without the alignment between them.
std::vector<FlatRange> counted_tensors(const FlatBuffer& buffer, const Mesh& mesh) {
  std::vector<FlatRange> counted;
  for (const FlatRange& owned : buffer.owned()) {
    for (const FlatBuffer::Entry& entry : buffer.entries()) {
      const FlatRange part = intersection(owned, entry.range);
      if (part.size() > 0 && counts(*entry.parameter, mesh)) counted.push_back(part);
    }
  }
  return counted;
}

// What turns the gradients that came into those of the mean loss.
at::Tensor unscaling(const Optimizer::Hyperparameters& hyper, const at::Tensor& like) {
  const at::Tensor scale = at::full_like(like, 1.0 / hyper.loss_scale);
  return hyper.count.defined() ? scale / hyper.count : scale;
}

bool counts_all(const FlatBuffer& buffer, const Mesh& mesh) {
  return std::all_of(buffer.entries().begin(), buffer.entries().end(),
                     [&](const FlatBuffer::Entry& entry) { return counts(*entry.parameter, mesh); });
}

}  // namespace

StateTensor StateTensor::part(int64_t begin, int64_t end) const {
  StateTensor part = *this;
  part.values = values.slice(0, begin, end);
  if (remainder.defined()) part.remainder = remainder.slice(0, begin, end);
  return part;
}

at::Tensor StateTensor::read() const {
  return remainder.defined() ? join_halves(values, remainder) : values;
}

void StateTensor::write(const at::Tensor& numbers) const {
  if (!remainder.defined()) {
    values.copy_(numbers);
  } else {
    split_into_halves(numbers.to(values.device()), values, remainder);
  }
}

Optimizer::Optimizer(FlatBuffer& buffer, const Mesh& mesh, const OptimizerOptions& options)
    : buffer_(buffer),
      options_(options),
      tensor_parallel_(mesh.group(Axis::tp)),
      embedding_group_(mesh.embedding()) {
  norm_group_ = buffer.options().sharded ? mesh.group({Axis::tp, Axis::pp, Axis::dp})
                                         : mesh.group({Axis::tp, Axis::pp});
  counted_tensors_ = counted_tensors(buffer, mesh);
  // Alignment is zero and adds nothing to a norm: few large sums instead of one per tensor.
  summed_ = counts_all(buffer, mesh) ? buffer.owned() : counted_tensors_;
  const at::TensorOptions state = buffer.gradients().options();
  const at::Tensor groups = block_groups(buffer);
  for (const FlatRange& range : buffer.owned()) {
    slices_.push_back(
        {.range = range,
         .weights = master_weights(range),
         .moments = make_moments(range.size()),
         .groups = groups.narrow(0, range.begin / optimizer_block, range.size() / optimizer_block)});
  }
  scalars_ = {.lr = at::zeros({groups_in_all}, state.dtype(at::kDouble)),
              .weight_decay = at::zeros({groups_in_all}, state.dtype(at::kDouble)),
              .step = at::zeros({1}, state.dtype(at::kLong))};
}

std::vector<Optimizer::Moment> Optimizer::make_moments(int64_t size) const {
  const auto zeros = [&] { return at::zeros({size}, buffer_.gradients().options()); };
  if (options_.kind == OptimizerKind::adam) return {{"exp_avg", zeros()}, {"exp_avg_sq", zeros()}};
  if (options_.sgd_momentum == 0.0) return {};
  return {{"momentum_buffer", zeros()}};
}

Weights Optimizer::master_weights(const FlatRange& range) const {
  const at::Tensor model = buffer_.parameters().narrow(0, range.begin, range.size());
  if (!needs_master(buffer_)) return {.param = model};
  if (model.scalar_type() == at::kBFloat16)
    return {.param = model, .remainder = at::zeros_like(model, model.options().dtype(at::kShort))};
  return {.param = model.to(buffer_.gradients().scalar_type()), .copy = model};
}

void Optimizer::sum_sequence_parallel_gradients() {
  if (tensor_parallel_.size == 1) return;
  std::vector<at::Tensor> parts;
  for (const FlatBuffer::Entry& entry : buffer_.entries()) {
    if (entry.parameter->options.sum_over_tensor_parallel)
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

// Slices that are owned alone: a tied tensor has a bucket of its own, so both stages own the same.
void Optimizer::sum_tied_gradients() {
  if (embedding_group_.size == 1) return;
  for (const FlatBuffer::Entry& entry : buffer_.entries()) {
    if (!entry.parameter->options.tied_over_stages) continue;
    for (const FlatRange& owned : buffer_.owned()) {
      const FlatRange part = intersection(owned, entry.range);
      if (part.size() == 0) continue;
      embedding_group_.communicator
          ->all_reduce(buffer_.gradients().narrow(0, part.begin, part.size()), ReduceOp::sum)
          .wait();
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

StepReport Optimizer::step(const Hyperparameters& hyper) {
  buffer_.finish_gather();
  sum_sequence_parallel_gradients();
  sum_tied_gradients();
  const at::Tensor& gradients = buffer_.gradients();
  const at::Tensor squares = sum_over_model(summed_, [&](const FlatRange& range) {
    return sum_of_squares(gradients.narrow(0, range.begin, range.size()));
  });
  const at::Tensor unscale = unscaling(hyper, squares);
  StepReport report{.grad_norm = squares.sqrt().mul_(unscale)};
  at::Tensor finite = report.grad_norm.isfinite();
  if (hyper.loss.defined()) finite = finite.logical_and(hyper.loss.isfinite());
  report.found_inf = finite.logical_not().to(at::kFloat);
  if (options_.count_zeros) {
    report.num_zeros = sum_over_model(counted_tensors_, [&](const FlatRange& range) {
      return count_zeros(gradients.narrow(0, range.begin, range.size()));
    });
  }
  scalars_.grad_scale = clipped(unscale, report.grad_norm).to(at::kFloat);
  set_scalars(hyper, report);
  advance_step_(scalars_.step, scalars_.found_inf);
  for (const Slice& slice : slices_) step_slice(slice);
  buffer_.gather_parameters();
  return report;
}

at::Tensor Optimizer::clipped(const at::Tensor& scale, const at::Tensor& grad_norm) const {
  if (options_.clip_grad == 0.0) return scale;
  return scale * at::clamp_max(options_.clip_grad / (grad_norm + 1e-6), 1.0);
}

void Optimizer::set_scalars(const Hyperparameters& hyper, const StepReport& report) {
  scalars_.found_inf = options_.skip_nonfinite ? report.found_inf : at::Tensor();
  scalars_.lr.fill_(hyper.lr);
  if (hyper.decoupled_lr) scalars_.lr.narrow(0, decoupled, 2).fill_(*hyper.decoupled_lr);
  scalars_.weight_decay.slice(0, 0, groups_in_all, 2).fill_(hyper.weight_decay);
}

void Optimizer::step_slice(const Slice& slice) {
  const FlatRange& range = slice.range;
  const at::Tensor gradient = buffer_.gradients().narrow(0, range.begin, range.size());
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

void Optimizer::add_state(const Slice& slice, const FlatBuffer::Entry& entry,
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
    for (const FlatBuffer::Entry& entry : buffer_.entries()) add_state(slice, entry, out);
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
  return sum_over_model(summed_,
                        [&](const FlatRange& range) {
                          return sum_of_squares(buffer_.parameters().narrow(0, range.begin, range.size()));
                        })
      .sqrt();
}

}  // namespace teratron
