#include "teratron/nn/mla/latent_state.h"

#include <ATen/ATen.h>

namespace teratron {

void LatentState::store(const at::Tensor& latents_TW, const at::Tensor& places_T) const {
  at::Tensor(latents_TW_).index_copy_(0, places_T, latents_TW);
}

void LatentState::store_last(const at::Tensor& latents_RW, const at::Tensor& table_RP,
                             const at::Tensor& positions_R) const {
  const at::Tensor column_R1 = at::floor_divide(positions_R, page_size_).unsqueeze(1);
  const at::Tensor page_R = table_RP.gather(1, column_R1).squeeze(1).to(at::kLong);
  store(latents_RW, page_R * page_size_ + positions_R.remainder(page_size_));
}

at::Tensor LatentState::sequence(const StoredTokens& tokens) const {
  return tokens.first_place >= 0 ? latents_TW_.narrow(0, tokens.first_place, tokens.length)
                                 : latents_TW_.index_select(0, tokens.places_L);
}

at::Tensor LatentState::sequences(const at::Tensor& table_RP) const {
  const at::Tensor pages = latents_TW_.view({-1, page_size_ * width_});
  return pages.index_select(0, table_RP.flatten()).view({table_RP.size(0), -1, width_});
}

StateNeeds LatentState::needs() const {
  return {.per_token = width_ * static_cast<int64_t>(options_.dtype().itemsize())};
}

void LatentState::allocate(const StateCapacity& capacity) {
  page_size_ = capacity.page_size;
  latents_TW_ = at::empty({capacity.pages * page_size_, width_}, options_);
  // Rows that a table of pages pads are read, and multiplied by 0.
  if (decodes_from_tables()) latents_TW_.zero_();
}

void LatentState::copy(const StateCopies& copies) {
  const auto& [from, to] = copies.pages;
  for (size_t i = 0; i < from.size(); ++i) {
    latents_TW_.narrow(0, to[i] * page_size_, page_size_)
        .copy_(latents_TW_.narrow(0, from[i] * page_size_, page_size_));
  }
}

}  // namespace teratron
