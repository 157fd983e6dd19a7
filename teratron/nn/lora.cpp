#include "teratron/nn/lora.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/base/hash_name.h"
#include "teratron/comm/collectives.h"
#include "teratron/kernels/pointwise/dropout.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/dropout.h"

namespace teratron {

namespace {

at::Tensor input_row_ids(const at::Tensor& x_SBI, const DropoutArgs& args) {
  SequenceRows rows = args.rows;
  if (rows.all_S.defined() && rows.all_S.size(0) == x_SBI.size(0)) rows.rows_S = rows.all_S;
  TERATRON_ASSERT(rows.rows_S.defined() && rows.rows_S.size(0) == x_SBI.size(0),
                  "dropout without sequence rows");
  return row_ids(rows, args.key.sample_ids_B);
}

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

Init lora_a_init(int64_t in) {
  return Init::normal(1.0 / std::sqrt(3.0 * static_cast<double>(in)));
}

at::Tensor lora_part_mask(const LoraParts& chosen, const std::vector<LinearPart>& parts, const Parameter& b) {
  if (chosen.shared) return {};
  const std::vector<int64_t> part_O = part_of_rows(chosen, parts, rows_of(b.options.shard));
  const at::Tensor part = at::tensor(part_O, at::kLong).to(b.tensor.device());
  const at::Tensor numbers = at::arange(std::ssize(chosen.names), part.options());
  return part.unsqueeze(1).eq(numbers.unsqueeze(0)).unsqueeze(2).to(b.tensor.scalar_type());
}

std::shared_ptr<Lora> Lora::make(const Scope& scope, Kind kind, const LoraShape& shape,
                                 const TensorParallel& parallel) {
  const LoraOptions* const options = scope.lora();
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
  ParameterOptions a{.init = lora_a_init(in_)}, b{.init = Init::zeros()};
  if (kind == Kind::column) {
    a.shard = Shard::replicated({parts * rank, in_});
    a.grad_sum = shape.grad_sum | parallel.grad_sum();
    b.shard = shape.weight;
    b.shard.global_shape = {out, rank};
    b.grad_sum = shape.grad_sum;
  } else {
    a.shard = Shard::split({rank, in_}, 1, group.size, group.rank);
    b.shard = Shard::replicated({out, rank});
    b.grad_sum = parallel.grad_sum();
  }
  a_ = &scope.parameter("lora_A", a);
  b_ = &scope.parameter("lora_B", b);
  part_mask_OP1_ = lora_part_mask(chosen, shape.parts, *b_);
}

void Lora::register_uses() const {
  register_use(*a_);
  register_use(*b_);
}

void Lora::Use::save(torch::autograd::AutogradContext* context, const std::string& key) const {
  auto& to = context->saved_data;
  save_releasable(context, key + "x", x_TI);
  save_releasable(context, key + "u", u_TP);
  save_releasable(context, key + "b", b_OP);
  to[key + "shape"] = shape;
  if (!drops) return;
  to[key + "drops"] = drops->where.rows;
  to[key + "rate"] = drops->p;
  to[key + "seed"] = static_cast<int64_t>(drops->key.seed);
  to[key + "site"] = static_cast<int64_t>(drops->key.tensor);
  to[key + "columns"] = drops->where.columns;
  to[key + "first"] = drops->where.first_column;
}

Lora::Use Lora::Use::saved(torch::autograd::AutogradContext* context, const std::string& key) {
  const auto at = [&](const char* name) { return context->saved_data.at(key + name); };
  Use use{.x_TI = release(context, key + "x"),
          .shape = at("shape").toIntVector(),
          .u_TP = release(context, key + "u"),
          .b_OP = release(context, key + "b")};
  if (context->saved_data.find(key + "drops") == context->saved_data.end()) return use;
  use.drops = {.p = at("rate").toDouble(),
               .key = {static_cast<uint64_t>(at("seed").toInt()), static_cast<uint64_t>(at("site").toInt())},
               .where = {.rows = at("drops").toTensor(),
                         .columns = at("columns").toInt(),
                         .first_column = at("first").toInt()}};
  return use;
}

std::optional<Dropout> Lora::drops(const at::Tensor& x, const DropoutArgs* where) const {
  if (!where || !where->training || dropout_ == 0.0) return std::nullopt;
  const int64_t columns = x.size(-1);
  return Dropout{.p = dropout_,
                 .key = {where->key.seed, site_},
                 .where = {.rows = input_row_ids(x, *where),
                           .columns = in_,
                           .first_column = columns == in_ ? 0 : parallel_.group.rank * columns}};
}

// [out, parts * rank], a row's B in the columns of its part.
at::Tensor Lora::expanded_b() const {
  const at::Tensor b_OR = b_->tensor.detach();
  if (!part_mask_OP1_.defined()) return b_OR;
  return (part_mask_OP1_ * b_OR.unsqueeze(1)).flatten(1);
}

Lora::Use Lora::forward(const at::Tensor& x, const DropoutArgs* where) const {
  Use use{.x_TI = as_rows(x.detach()).contiguous(), .shape = x.sizes().vec(), .drops = drops(x, where)};
  const at::Tensor dropped = use.drops ? dropout(use.x_TI, *use.drops) : use.x_TI;
  at::Tensor u = shaped_like(linear_forward(dropped, a_->tensor, {}), x.sizes());
  if (scale_ != 1.0) u.mul_(scale_);
  const Group& group = parallel_.group;
  if (kind_ == Kind::column) {
    if (parallel_.sequence_parallel) u = all_gather(u, 0, group);
  } else {
    u = parallel_.sequence_parallel ? reduce_scatter(u, 0, group) : reduce_from(u, group);
  }
  use.u_TP = as_rows(u);
  use.b_OP = expanded_b();
  return use;
}

// The product of dy and u also has values for rows beside A of other parts, which B lacks.
void Lora::accumulate_b_grad(const at::Tensor& dy_TO, const at::Tensor& u_TP) const {
  if (!part_mask_OP1_.defined()) return accumulate_weight_grad(*b_, dy_TO, u_TP);
  const int64_t out = dy_TO.size(1), parts = part_mask_OP1_.size(1);
  const at::Tensor db_OP =
      at::empty({out, u_TP.size(1)}, u_TP.options().dtype(main_grad_dtype(u_TP.scalar_type())));
  linear_weight_gradient_(db_OP, dy_TO, u_TP, /*add=*/false);
  accumulate_grad(*b_, db_OP.view({out, parts, -1}).mul_(part_mask_OP1_).sum(1));
}

at::Tensor Lora::backward(const at::Tensor& dy_TO, const Use& use) const {
  accumulate_b_grad(dy_TO, use.u_TP);
  at::Tensor du = linear_input_gradient(dy_TO, use.b_OP);
  if (scale_ != 1.0) du.mul_(scale_);
  const Group& group = parallel_.group;
  du = du.view({-1, use.shape[1], du.size(1)});
  if (kind_ == Kind::column) {
    du = parallel_.sequence_parallel ? reduce_scatter(du, 0, group) : reduce_from(du, group);
  } else if (parallel_.sequence_parallel) {
    du = all_gather(du, 0, group);
  }
  const at::Tensor du_TP = as_rows(du);
  const at::Tensor dropped = use.drops ? dropout(use.x_TI, *use.drops) : use.x_TI;
  accumulate_weight_grad(*a_, du_TP, dropped);
  return du_TP;
}

void Lora::add_input_grad_(const at::Tensor& dx_TI, const at::Tensor& du_TP, const Use& use) const {
  if (!use.drops) return add_product_(dx_TI, added_to_input_grad(du_TP));
  at::Tensor dx = dx_TI;
  dx.add_(dropout(linear_input_gradient(du_TP, a_->tensor), *use.drops));
}

}  // namespace teratron
