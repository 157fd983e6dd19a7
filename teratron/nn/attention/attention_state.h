// Keys and values of an attention layer in a generation, in pages of static memory.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "teratron/nn/layer_state.h"

namespace teratron {

/// [pages * page_size, G, D]: the keys and values of the tokens at these places (tokens/generation_batch.h).
struct KeyValuePages {
  at::Tensor k_TGD;
  at::Tensor v_TGD;
};

class AttentionState final : public LayerState {
 public:
  struct Shape {
    int64_t groups = 0;  // key/value heads of this rank
    int64_t qk_channels = 0;
    int64_t v_channels = 0;
    at::TensorOptions options = {};
  };
  /// With `before`, if that is the state of an attention of the same shape, uses its pages: those of a layer
  /// hold the keys and values of sequences and of their sources.
  explicit AttentionState(const Shape& shape, LayerState* before = nullptr);
  const KeyValuePages& pages() const { return *pages_; }

  StateNeeds needs() const override;
  void allocate(const StateCapacity& capacity) override;
  void copy(const StateCopies& copies) override;
  bool decodes_from_tables() const override;

 private:
  Shape shape_;
  bool shares_ = false;
  int64_t page_size_ = 0;
  std::shared_ptr<KeyValuePages> pages_;
};

}  // namespace teratron
