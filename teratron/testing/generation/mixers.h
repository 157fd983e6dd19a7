// Mixers that tests put in the place of self-attention.
#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/cost/linear_cost.h"
#include "teratron/nn/states/slot_state.h"

namespace teratron {

/// y_s = a y_(s-1) + x_s for each channel of a projection, with a trained factor a.
class DecayedSum : public Mixer {
 public:
  DecayedSum(const Scope& scope, int64_t hidden, const TensorParallel& parallel)
      : tensors_(scope.options().tensors()),
        in_(scope / "linear_in", {.in = hidden, .out = hidden, .init = Init::normal(0.3)}, parallel),
        out_(scope / "linear_proj", {.in = hidden, .out = hidden, .init = Init::normal(0.3)}, parallel),
        factor_(scope.parameter("factor",
                                {.shard = Shard::split({hidden}, 0, parallel.group.size, parallel.group.rank),
                                 .init = Init::normal(1.0)})) {}

  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override {
    const at::Tensor x_SBC = apply_bias_grad(in_.forward(x_SBH.tensor()));
    const at::Tensor zeros_BC = at::zeros({x_SBC.size(1), x_SBC.size(2)}, tensors_);
    const at::Tensor y_SBC =
        state ? generate(x_SBC, context, static_cast<SlotState&>(*state)) : sums(x_SBC, zeros_BC);
    return out_.forward_add_residual(y_SBC, residual);
  }
  std::unique_ptr<LayerState> make_state(LayerState* /*before*/) const override {
    return std::make_unique<SlotState>(factor_.tensor.sizes(), tensors_);
  }

 private:
  at::Tensor sums(const at::Tensor& x_SBC, at::Tensor y_BC) const {
    const at::Tensor a = autograd_tensor(factor_).sigmoid();
    std::vector<at::Tensor> y;
    for (const at::Tensor& x_BC : x_SBC.unbind(0)) y.push_back(y_BC = a * y_BC + x_BC);
    return at::stack(y);
  }

  at::Tensor generate(const at::Tensor& x_T1C, const LayerContext& context, SlotState& state) const {
    const at::Tensor before_RC = state.read(context);
    if (context.generation->has_single_tokens(x_T1C.size(0))) {
      const at::Tensor y_RC = sums(x_T1C.transpose(0, 1), before_RC).squeeze(0);
      state.write(y_RC, context);
      return y_RC.unsqueeze(1);
    }
    std::vector<at::Tensor> y, after;
    for (int64_t r = 0; const GenerationRow& row : context.generation->rows) {
      y.push_back(sums(x_T1C.narrow(0, row.first_token, row.tokens), before_RC.narrow(0, r++, 1)));
      after.push_back(y.back()[-1]);
    }
    state.write(at::cat(after), context);
    return at::cat(y);
  }

  at::TensorOptions tensors_;
  ColumnLinear in_;
  RowLinear out_;
  Parameter& factor_;
};

/// The costs of a DecayedSum. It saves its input, the factors, the state of each token and what linear_proj
/// reads.
inline std::vector<Operator> decayed_sum_operators(const std::string& name, const RankSizes& sizes) {
  const double hidden = as_real(sizes.states.width), channels = hidden / sizes.shards;
  Operator op = gemm_operator(name, sizes, hidden, 2.0 * channels);
  const double states = sizes.tokens * channels * sizes.element;
  op.add_saved(column_input(sizes, hidden, false) + channels * sizes.element + states +
               row_input(sizes, channels, false));
  op.forward_peak += states + row_output(sizes);
  op.backward_peak += states + row_gradient(sizes);
  return {op};
}

/// Causal attention whose queries and keys are wider than its values.
class WideKeyAttention : public Mixer {
 public:
  WideKeyAttention(const Scope& scope, int64_t hidden, const TensorParallel& parallel)
      : core_(options(hidden), scope, parallel.group),
        q_(scope / "linear_q", projection(hidden, 6), parallel),
        k_(scope / "linear_k", projection(hidden, 6), parallel),
        v_(scope / "linear_v", projection(hidden, 3), parallel),
        out_(scope / "linear_proj", {.in = heads * 3, .out = hidden, .init = Init::normal(0.3)}, parallel) {}

  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override {
    const at::Tensor x = x_SBH.tensor();
    const auto heads_of = [&](ColumnLinear& linear) {
      return apply_bias_grad(linear.forward(x)).unflatten(-1, {core_.heads(), -1});
    };
    const QueryKeyValue qkv{heads_of(q_), heads_of(k_), heads_of(v_)};
    const at::Tensor y = state
                             ? core_.forward_paged(qkv, static_cast<AttentionState&>(*state).pages(), context)
                             : core_.forward(qkv, context.segments, context);
    return out_.forward_add_residual(y, residual);
  }
  std::unique_ptr<LayerState> make_state(LayerState* /*before*/) const override { return core_.make_state(); }

 private:
  static constexpr int64_t heads = 4;
  static AttentionLayerOptions options(int64_t hidden) {
    return {.hidden = hidden, .heads = heads, .query_groups = heads, .kv_channels = 6, .v_channels = 3};
  }
  static LinearOptions projection(int64_t hidden, int64_t channels) {
    return {.in = hidden, .out = heads * channels, .init = Init::normal(0.3)};
  }

  CoreAttention core_;
  ColumnLinear q_, k_, v_;
  RowLinear out_;
};

}  // namespace teratron
