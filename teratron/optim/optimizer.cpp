#include "teratron/optim/optimizer.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/kernels/reduce.h"

namespace teratron {

namespace {

enum DecayGroup : int64_t { decayed = 0, not_decayed = 1, decay_groups = 2 };

FlatRange intersection(const FlatRange& a, const FlatRange& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

bool has_master(const FlatBuffer& buffer) {
  return buffer.parameters().scalar_type() != buffer.gradients().scalar_type();
}

// The group of each block of 64 elements of the whole buffer.
at::Tensor block_groups(const FlatBuffer& buffer) {
  const int64_t blocks = buffer.gradients().numel() / optimizer_block;
  at::Tensor groups = at::zeros({blocks}, at::kByte);
  for (const FlatBuffer::Entry& entry : buffer.entries()) {
    const int64_t first = entry.range.begin / optimizer_block;
    const int64_t end = (entry.range.end + optimizer_block - 1) / optimizer_block;
    groups.narrow(0, first, end - first)
        .fill_(entry.parameter->options.weight_decay ? DecayGroup::decayed : DecayGroup::not_decayed);
  }
  return groups.to(buffer.gradients().device());
}

// Owned parts of the tensors that this rank counts, without the alignment between them.
std::vector<FlatRange> counted_tensors(const FlatBuffer& buffer, bool counts_replicated) {
  std::vector<FlatRange> counted;
  for (const FlatRange& owned : buffer.owned()) {
    for (const FlatBuffer::Entry& entry : buffer.entries()) {
      const FlatRange part = intersection(owned, entry.range);
      const bool counts = counts_replicated || entry.parameter->shard().dim >= 0;
      if (part.size() > 0 && counts) counted.push_back(part);
    }
  }
  return counted;
}

}  // namespace

Optimizer::Optimizer(FlatBuffer& buffer, const Mesh& mesh, const OptimizerOptions& options)
    : buffer_(buffer), options_(options), tensor_parallel_(mesh.group(Axis::tp)) {
  norm_group_ = buffer.options().sharded ? mesh.group({Axis::tp, Axis::pp, Axis::dp})
                                         : mesh.group({Axis::tp, Axis::pp});
  const bool counts_replicated = tensor_parallel_.rank == 0;
  counted_tensors_ = counted_tensors(buffer, counts_replicated);
  // Alignment is zero and adds nothing to a norm: few large sums instead of one per tensor.
  summed_ = counts_replicated ? buffer.owned() : counted_tensors_;
  const at::TensorOptions state = buffer.gradients().options();
  const at::Tensor groups = block_groups(buffer);
  for (const FlatRange& range : buffer.owned()) {
    const at::Tensor model = buffer.parameters().narrow(0, range.begin, range.size());
    slices_.push_back(
        {.range = range,
         .master = has_master(buffer) ? model.to(state.dtype()) : model,
         .exp_avg = at::zeros({range.size()}, state),
         .exp_avg_sq = at::zeros({range.size()}, state),
         .groups = groups.narrow(0, range.begin / optimizer_block, range.size() / optimizer_block)});
  }
  scalars_ = {.lr = at::zeros({decay_groups}, state.dtype(at::kDouble)),
              .weight_decay = at::zeros({decay_groups}, state.dtype(at::kDouble)),
              .step = at::zeros({1}, state.dtype(at::kLong))};
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

at::Tensor Optimizer::sum_over_model(const std::vector<FlatRange>& ranges,
                                     const std::function<at::Tensor(const FlatRange&)>& of_range) const {
  at::Tensor total = at::zeros({1}, buffer_.gradients().options().dtype(at::kDouble));
  for (const FlatRange& range : ranges) total.add_(of_range(range));
  if (norm_group_.size > 1) norm_group_.communicator->all_reduce(total, ReduceOp::sum).wait();
  return total;
}

StepReport Optimizer::step(const Hyperparameters& hyper) {
  sum_sequence_parallel_gradients();
  const at::Tensor& gradients = buffer_.gradients();
  const at::Tensor squares = sum_over_model(summed_, [&](const FlatRange& range) {
    return sum_of_squares(gradients.narrow(0, range.begin, range.size()));
  });
  StepReport report{.grad_norm = squares.sqrt().div_(hyper.loss_scale)};
  report.found_inf = report.grad_norm.isfinite().logical_not_().to(at::kFloat);
  if (options_.count_zeros) {
    report.num_zeros = sum_over_model(counted_tensors_, [&](const FlatRange& range) {
      return count_zeros(gradients.narrow(0, range.begin, range.size()));
    });
  }
  at::Tensor scale = at::full_like(report.grad_norm, 1.0 / hyper.loss_scale);
  if (options_.clip_grad > 0.0) {
    scale.mul_(at::clamp_max(options_.clip_grad / (report.grad_norm + 1e-6), 1.0));
  }
  scalars_.grad_scale = scale.to(at::kFloat);
  scalars_.found_inf = options_.skip_nonfinite ? report.found_inf : at::Tensor();
  scalars_.lr.fill_(hyper.lr);
  scalars_.weight_decay.narrow(0, DecayGroup::decayed, 1).fill_(hyper.weight_decay);
  advance_step_(scalars_.step, scalars_.found_inf);
  for (const Slice& slice : slices_) {
    const FlatRange& range = slice.range;
    adam_step_({.param = slice.master,
                .grad = gradients.narrow(0, range.begin, range.size()),
                .exp_avg = slice.exp_avg,
                .exp_avg_sq = slice.exp_avg_sq,
                .copy = has_master(buffer_) ? buffer_.parameters().narrow(0, range.begin, range.size())
                                            : at::Tensor(),
                .groups = slice.groups},
               scalars_, options_.adam);
  }
  buffer_.gather_parameters();
  return report;
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
  if (part.size() <= 0) return;
  const FlatRange local{part.begin - entry.range.begin, part.end - entry.range.begin};
  const auto add = [&](const char* kind, const at::Tensor& values) {
    out.push_back({fmt::format("optimizer.{}.{}", kind, entry.parameter->name), entry.parameter->shard(),
                   local, values.narrow(0, part.begin - slice.range.begin, part.size())});
  };
  if (has_master(buffer_)) add("param", slice.master);
  add("exp_avg", slice.exp_avg);
  add("exp_avg_sq", slice.exp_avg_sq);
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> out;
  for (const Slice& slice : slices_) {
    for (const FlatBuffer::Entry& entry : buffer_.entries()) add_state(slice, entry, out);
  }
  return out;
}

void Optimizer::reset_master_weights() {
  if (!has_master(buffer_)) return;
  for (const Slice& slice : slices_) {
    slice.master.copy_(buffer_.parameters().narrow(0, slice.range.begin, slice.range.size()));
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
