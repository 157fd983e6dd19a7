#include "teratron/nn/attention/attention_state.h"

#include <ATen/ATen.h>

#include "teratron/kernels/attention/paged_decode.h"

namespace teratron {

namespace {

bool same_shape(const AttentionState::Shape& a, const AttentionState::Shape& b) {
  return a.groups == b.groups && a.qk_channels == b.qk_channels && a.v_channels == b.v_channels;
}

}  // namespace

AttentionState::AttentionState(const Shape& shape, LayerState* before) : shape_(shape) {
  const auto* const other = dynamic_cast<AttentionState*>(before);
  shares_ = other && same_shape(other->shape_, shape);
  pages_ = shares_ ? other->pages_ : std::make_shared<KeyValuePages>();
}

StateNeeds AttentionState::needs() const {
  if (shares_) return {};
  const auto element = static_cast<int64_t>(shape_.options.dtype().itemsize());
  return {.per_token = shape_.groups * (shape_.qk_channels + shape_.v_channels) * element};
}

void AttentionState::allocate(const StateCapacity& capacity) {
  if (shares_) return;
  // Not filled: only places that were written are read, and memory that is never used stays virtual on CPUs.
  const int64_t places = capacity.pages * capacity.page_size;
  pages_->k_TGD = at::empty({places, shape_.groups, shape_.qk_channels}, shape_.options);
  pages_->v_TGD = at::empty({places, shape_.groups, shape_.v_channels}, shape_.options);
  page_size_ = capacity.page_size;
}

void AttentionState::copy(const StateCopies& copies) {
  if (shares_) return;
  const auto& [from, to] = copies.pages;
  for (const at::Tensor& tokens : {pages_->k_TGD, pages_->v_TGD}) {
    for (size_t i = 0; i < from.size(); ++i) {
      tokens.narrow(0, to[i] * page_size_, page_size_)
          .copy_(tokens.narrow(0, from[i] * page_size_, page_size_));
    }
  }
}

bool AttentionState::decodes_from_tables() const {
  return shape_.qk_channels == shape_.v_channels &&
         paged_decode_supports(shape_.options.device(), c10::typeMetaToScalarType(shape_.options.dtype()),
                               shape_.qk_channels);
}

}  // namespace teratron
