// The latents of multi-head latent attention in a generation, in pages of static memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "teratron/nn/layer_state.h"
#include "teratron/nn/tokens/generation_batch.h"

namespace teratron {

/// [places, R + rope]: of each token its latent after the norm and its rotated key, on every tensor-parallel
/// rank.
class LatentState final : public LayerState {
 public:
  LatentState(int64_t width, const at::TensorOptions& options) : width_(width), options_(options) {}
  /// Writes [T, width] to the tokens' places.
  void store(const at::Tensor& latents_TW, const at::Tensor& places_T) const;
  /// Writes [R, width] to the positions of sequences that a table of pages has.
  void store_last(const at::Tensor& latents_RW, const at::Tensor& table_RP,
                  const at::Tensor& positions_R) const;
  /// The latents of one sequence, [length, width]; a view where its pages follow each other.
  at::Tensor sequence(const StoredTokens& tokens) const;
  /// The latents of the sequences of a table of pages, [R, P * page_size, width].
  at::Tensor sequences(const at::Tensor& table_RP) const;

  StateNeeds needs() const override;
  void allocate(const StateCapacity& capacity) override;
  void copy(const StateCopies& copies) override;
  bool decodes_from_tables() const override { return options_.device().is_cuda(); }

 private:
  int64_t width_;
  at::TensorOptions options_;
  int64_t page_size_ = 0;
  at::Tensor latents_TW_;
};

}  // namespace teratron
