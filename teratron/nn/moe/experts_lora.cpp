#include "teratron/nn/moe/experts_lora.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// Grouped GEMMs on GPUs need rows of whole 16 bytes.
constexpr int64_t multiple = 8;

// Zeros up to a multiple along `dim` of [E, rows, columns]; they add nothing to products.
ExpertWeights padded(at::Tensor block_EOI, int64_t dim) {
  const int64_t missing = (multiple - block_EOI.size(dim) % multiple) % multiple;
  if (block_EOI.is_cuda() && missing > 0) {
    std::vector<int64_t> pad(2 * static_cast<size_t>(block_EOI.dim() - dim), 0);
    pad.back() = missing;
    block_EOI = at::constant_pad_nd(block_EOI, pad);
  }
  return block_EOI.unbind(0);
}

void accumulate(const ExpertParameters& parameters, const at::Tensor& gradients_EOI) {
  for (size_t e = 0; e < parameters.size(); ++e)
    accumulate_grad(*parameters[e], gradients_EOI.select(0, static_cast<int64_t>(e)));
}

}  // namespace

std::unique_ptr<ExpertsLora> ExpertsLora::make(const Options& options, const Group& tensor,
                                               const Create& create) {
  if (lora_parts(options.lora, options.layer.name, options.layer.parts).empty()) return nullptr;
  return std::unique_ptr<ExpertsLora>(new ExpertsLora(options, tensor, create));
}

ExpertsLora::ExpertsLora(const Options& options, const Group& tensor, const Create& create) {
  const LoraOptions& lora = options.lora;
  TERATRON_ASSERT(lora.dropout == 0.0, "adapters of experts drop no inputs");
  scale_ = lora.alpha / static_cast<double>(lora.rank);
  const Shard& weight = options.layer.weight;
  const int64_t out = weight.global_shape.at(0), in = weight.global_shape.at(1);
  const LoraParts chosen = lora_parts(lora, options.layer.name, options.layer.parts);
  const int64_t rank = lora.rank, parts = std::ssize(chosen.names);
  const AxisSet summed = tensor.size > 1 ? AxisSet(Axis::etp) : AxisSet();
  ParameterOptions a{.init = lora_a_init(in)}, b{.init = Init::zeros()};
  if (options.kind == Lora::Kind::column) {
    a.shard = Shard::replicated({parts * rank, in});
    a.grad_sum = summed;
    b.shard = weight;
    b.shard.global_shape = {out, rank};
  } else {
    a.shard = weight;
    a.shard.global_shape = {rank, in};
    b.shard = Shard::replicated({out, rank});
    b.grad_sum = summed;
  }
  a_ = create("lora_A", a);
  b_ = create("lora_B", b);
  part_mask_OP1_ = lora_part_mask(chosen, options.layer.parts, *b_.front());
}

ExpertWeights ExpertsLora::a() const {
  return padded(as_block(a_), 1);
}

// [out, parts * rank], a row's B in the columns of its part.
ExpertWeights ExpertsLora::b() const {
  at::Tensor b_EOR = as_block(b_);
  if (part_mask_OP1_.defined()) b_EOR = (part_mask_OP1_ * b_EOR.unsqueeze(2)).flatten(2);
  return padded(b_EOR, 2);
}

void ExpertsLora::add_(at::Tensor y_RO, const at::Tensor& x_RI, const GroupedGemm& gemm) const {
  y_RO.add_(gemm.forward(gemm.forward(x_RI, a()).mul_(scale_), b()));
}

void ExpertsLora::backward_(at::Tensor dx_RI, const at::Tensor& dy_RO, const at::Tensor& x_RI,
                            const GroupedGemm& gemm) const {
  const ExpertWeights a_PI = a(), b_OP = b();
  const int64_t experts = std::ssize(a_), width = a_.front()->tensor.size(0);
  const at::Tensor u_RP = gemm.forward(x_RI, a_PI).mul_(scale_);
  at::Tensor db_EOP = gemm.weight_grads(dy_RO, u_RP, experts).narrow(2, 0, width);
  if (part_mask_OP1_.defined()) {
    const int64_t parts = part_mask_OP1_.size(1);
    db_EOP = (db_EOP.unflatten(2, {parts, -1}) * part_mask_OP1_).sum(2);
  }
  accumulate(b_, db_EOP);
  const at::Tensor du_RP = gemm.input_grad(dy_RO, b_OP).mul_(scale_);
  accumulate(a_, gemm.weight_grads(du_RP, x_RI, experts).narrow(1, 0, width));
  dx_RI.add_(gemm.input_grad(du_RP, a_PI));
}

}  // namespace teratron
