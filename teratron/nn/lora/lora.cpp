#include "teratron/nn/lora/lora.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/base/hash_name.h"
#include "teratron/comm/collectives.h"
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/nn/autograd.h"
#include "teratron/nn/dropout.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor row_ids(const at::Tensor& x_SBI, const DropoutArgs& args) {
  const SequenceRows& rows = args.rows;
  const bool is_whole = rows.all_S.defined() && rows.all_S.numel() == x_SBI.size(0);
  const at::Tensor& rows_S = is_whole ? rows.all_S : rows.rows_S;
  if (rows.of_run) return rows_S;
  TERATRON_ASSERT(rows_S.defined() && rows_S.numel() == x_SBI.size(0), "dropout without sequence rows");
  return (args.key.sample_ids_B * rows.total).unsqueeze(0).add(rows_S.unsqueeze(1)).reshape(-1);
}

// Dropout of columns [first, first + n) of rows of `columns` elements.
struct LoraDropout : torch::autograd::Function<LoraDropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Dropout& args) {
    save_dropout(context, args);
    context->saved_data["columns"] = args.where.columns;
    context->saved_data["first"] = args.where.first_column;
    context->save_for_backward({args.where.rows});
    return dropout(x.contiguous(), args);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    Dropout args = saved_dropout(context, context->get_saved_variables()[0]);
    args.where.columns = context->saved_data["columns"].toInt();
    args.where.first_column = context->saved_data["first"].toInt();
    return {dropout(gradients[0].contiguous(), args), at::Tensor()};
  }
};

bool is_target(const LoraOptions& options, const std::string& name) {
  return std::find(options.targets.begin(), options.targets.end(), name) != options.targets.end();
}

std::vector<int64_t> rows_of(const Shard& shard) {
  std::vector<int64_t> rows(static_cast<size_t>(shard.local_shape()[0]), 0);
  for (const Piece& piece : shard.pieces()) {
    for (int64_t i = 0; i < piece.global.size[0]; ++i)
      rows[static_cast<size_t>(piece.local_start + i)] = piece.global.start[0] + i;
  }
  return rows;
}

// As PyTorch initializes A: the variance of a uniform distribution within 1 / sqrt(in).
Init init_a(int64_t in) {
  return Init::normal(1.0 / std::sqrt(3.0 * static_cast<double>(in)));
}

}  // namespace

LoraParts lora_parts(const LoraOptions& options, const std::string& layer,
                     const std::vector<LinearPart>& parts) {
  if (is_target(options, layer)) return {true, {layer}};
  LoraParts chosen;
  for (const LinearPart& part : parts) {
    if (is_target(options, part.name)) chosen.names.push_back(part.name);
  }
  return chosen;
}

std::vector<int64_t> part_of_rows(const LoraParts& chosen, const std::vector<LinearPart>& parts,
                                  const std::vector<int64_t>& rows) {
  if (chosen.shared) return std::vector<int64_t>(rows.size(), 0);
  int64_t period = 0;
  for (const LinearPart& part : parts) period += part.rows;
  std::vector<int64_t> result;
  for (const int64_t row : rows) {
    int64_t within = row % period;
    auto part = parts.begin();
    while (within >= part->rows) within -= (part++)->rows;
    const auto found = std::find(chosen.names.begin(), chosen.names.end(), part->name);
    result.push_back(found == chosen.names.end() ? -1 : found - chosen.names.begin());
  }
  return result;
}

std::shared_ptr<Lora> Lora::make(const Scope& scope, Kind kind, const LoraShape& shape,
                                 const TensorParallel& parallel) {
  const auto& options = scope.options().lora;
  if (!options || lora_parts(*options, shape.name, shape.parts).empty()) return nullptr;
  return std::shared_ptr<Lora>(new Lora(scope, kind, shape, parallel));
}

Lora::Lora(const Scope& scope, Kind kind, const LoraShape& shape, const TensorParallel& parallel)
    : kind_(kind),
      parallel_(parallel),
      site_(hash_name(scope.prefix())),
      in_(shape.weight.global_shape.at(1)) {
  const LoraOptions& options = *scope.options().lora;
  scale_ = options.alpha / static_cast<double>(options.rank);
  dropout_ = options.dropout;
  const LoraParts chosen = lora_parts(options, shape.name, shape.parts);
  const auto parts = std::ssize(chosen.names);
  const int64_t rank = options.rank;
  const Group& group = parallel.group;
  const int64_t out = shape.weight.global_shape.at(0);
  ParameterOptions a{.init = init_a(in_)}, b{.init = Init::zeros()};
  if (kind == Kind::column) {
    a.shard = Shard::replicated({parts * rank, in_});
    a.grad_sum = parallel.grad_sum();
    b.shard = shape.weight;
    b.shard.global_shape = {out, rank};
  } else {
    a.shard = Shard::split({rank, in_}, 1, group.size, group.rank);
    b.shard = Shard::replicated({out, rank});
    b.grad_sum = parallel.grad_sum();
  }
  a_ = &scope.parameter("lora_A", a);
  b_ = &scope.parameter("lora_B", b);
  if (parts == 1 && chosen.shared) return;
  const std::vector<int64_t> part_O = part_of_rows(chosen, shape.parts, rows_of(b.shard));
  const at::Tensor mask = at::zeros({std::ssize(part_O), parts}, b_->tensor.options().requires_grad(false));
  const at::Tensor part = at::tensor(part_O, at::kLong).to(mask.device());
  part_mask_OP_ = part.unsqueeze(1).eq(at::arange(parts, part.options()).unsqueeze(0)).to(mask.scalar_type());
}

// [out, parts * rank], a row's B in the columns of its part.
at::Tensor Lora::expanded_b() const {
  const at::Tensor b_OR = autograd_tensor(*b_);
  if (!part_mask_OP_.defined()) return b_OR;
  return (part_mask_OP_.unsqueeze(2) * b_OR.unsqueeze(1)).flatten(1);
}

// x A^T, complete on every rank.
at::Tensor Lora::reduced(const at::Tensor& x) const {
  const at::Tensor a = at::linear(x, autograd_tensor(*a_)) * scale_;
  const Group& group = parallel_.group;
  if (kind_ == Kind::column) return parallel_.sequence_parallel ? all_gather(a, 0, group) : copy_to(a, group);
  return parallel_.sequence_parallel ? reduce_scatter(a, 0, group) : reduce_from(a, group);
}

at::Tensor Lora::forward(const at::Tensor& x, const DropoutArgs* where) const {
  if (!where || !where->training || dropout_ == 0.0) return at::linear(reduced(x), expanded_b());
  const int64_t columns = x.size(-1);
  const Dropout args{.p = dropout_,
                     .key = {where->key.seed, site_},
                     .where = {.rows = row_ids(x, *where),
                               .columns = in_,
                               .first_column = columns == in_ ? 0 : parallel_.group.rank * columns}};
  return at::linear(reduced(LoraDropout::apply(x, args)), expanded_b());
}

}  // namespace teratron
