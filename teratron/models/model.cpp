#include "teratron/models/model.h"

#include <ATen/ATen.h>

namespace teratron {

const at::Tensor& NamedTensors::operator[](std::string_view name) const {
  static const at::Tensor undefined;
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? undefined : found->second;
}

PackedRows packed_rows(const MicroBatch& batch) {
  if (batch.padded_length == 0) return {};
  return {.tokens_T = batch["packed_tokens"],
          .starts_B = batch["row_starts"],
          .padded = {batch["padded_cu_seqlens"]},
          .length = batch.padded_length};
}

LossTerm masked_loss(const at::Tensor& losses_SB, const at::Tensor& mask_SB) {
  return {.sum = (losses_SB * mask_SB.to(losses_SB.scalar_type())).sum(), .count = mask_SB.sum()};
}

at::Tensor Model::logits(const Activations&) {
  return {};
}

std::vector<InferenceOutput> Model::inference_outputs(const Activations& output) {
  return {{.name = "logits", .tensor = logits(output), .vocabulary_parallel = true}};
}

at::Tensor Model::text_embeddings(const Activations&) {
  return {};
}

at::Tensor Model::token_losses(const Activations&, const MicroBatch&) {
  return {};
}

std::vector<LossTerm> Model::losses(const Activations& output, const MicroBatch& batch) {
  return {masked_loss(token_losses(output, batch), batch["loss_mask"])};
}

}  // namespace teratron
