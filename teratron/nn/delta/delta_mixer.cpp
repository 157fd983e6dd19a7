#include "teratron/nn/delta/delta_mixer.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/nn/recurrent/recurrent_init.h"

namespace teratron {

namespace {

std::vector<int64_t> conv_segments(const DeltaOptions& core) {
  return {core.keys(), core.keys(), core.values()};
}

std::vector<int64_t> segments_of(const DeltaOptions& core) {
  return {core.keys(), core.keys(), core.values(), core.values(), core.value_heads, core.value_heads};
}

class DeltaNetCore final : public RecurrentCore {
 public:
  DeltaNetCore(const Scope& scope, const DeltaMixerOptions& options, const Group& group)
      : options_(delta_part(options.core, group.size)), kernel_(options.conv_kernel) {
    const DeltaOptions& all = options.core;
    const auto of_heads = [&](const char* name, const Init& init) {
      return &scope.parameter(name, {.shard = Shard::split({all.value_heads}, 0, group.size, group.rank),
                                     .init = init,
                                     .param_group = ParamGroup::no_weight_decay});
    };
    conv_weight_ =
        &(scope / "conv1d")
             .parameter("weight", {.shard = Shard::split_segments({all.channels(), 1, kernel_}, 0,
                                                                  conv_segments(all), group.size, group.rank),
                                   .init = of_convolution(kernel_)});
    dt_bias_ = of_heads("dt_bias", Init::ones());
    A_log_ = of_heads("A_log", log_uniform_decay());
    norm_weight_ = &(scope / "out_norm")
                        .parameter("weight", {.shard = Shard::replicated({all.value_dim}),
                                              .init = Init::ones(),
                                              .param_group = ParamGroup::no_weight_decay,
                                              .grad_sum = {Axis::tp}});  // each rank sees some heads
  }

  Output forward(const Input& in, const States& before) const override {
    const DeltaOutput out = delta_forward({in.columns_SB, in.document_SB, {before.conv, before.recurrent}},
                                          weights(in), delta_part(options_, in.part.count));
    return {out.y_SB, {out.after.conv, out.after.rule}};
  }

  at::Tensor step(const at::Tensor& columns_R, const StateTables& tables) const override {
    return delta_step(columns_R, tables, weights(Input{}), options_);
  }

  Backward backward(const at::Tensor& dy_SB, const Input& in, const Ends& ends) const override {
    const DeltaGradients d =
        delta_backward(dy_SB, ends.dafter, {in.columns_SB, in.document_SB, {.rule = ends.before}},
                       weights(in), delta_part(options_, in.part.count));
    if (!ends.accumulates) return {d.dqkvzba_SB, d.drule};
    const auto add = [](Parameter& parameter, const at::Tensor& gradient, const Slices& slices) {
      accumulate_grad(parameter, put_back(gradient, slices, parameter.tensor));
    };
    if (!in.convolved) add(*conv_weight_, d.weights.conv_weight, channels_of(in.part));
    add(*dt_bias_, d.weights.dt_bias, heads_of(in.part));
    add(*A_log_, d.weights.A_log, heads_of(in.part));
    accumulate_grad(*norm_weight_, d.weights.norm_weight);
    return {d.dqkvzba_SB, d.drule};
  }

  ConvolutionPart convolution() const override { return {{0, options_.channels()}, conv_weight_, nullptr}; }
  at::Tensor transition(const Input& in) const override;
  at::Tensor apply(const at::Tensor& transition, const at::Tensor& state) const override {
    return at::matmul(transition, state);
  }
  at::Tensor apply_transposed(const at::Tensor& transition, const at::Tensor& state) const override {
    return at::matmul(transition.mT(), state);
  }

  Slices columns_of(const HeadPart& part) const override { return slices_of(segments_of(options_), part); }

  std::vector<Parameter*> parameters() const override {
    return {conv_weight_, dt_bias_, A_log_, norm_weight_};
  }
  std::vector<int64_t> conv_shape() const override { return {kernel_ - 1, options_.channels()}; }
  std::vector<int64_t> recurrent_shape() const override {
    return {options_.value_heads, options_.key_dim, options_.value_dim};
  }

 private:
  Slices channels_of(const HeadPart& part) const { return slices_of(conv_segments(options_), part); }
  Slices heads_of(const HeadPart& part) const { return slices_of({options_.value_heads}, part); }
  DeltaWeights weights(const Input& in) const {
    const HeadPart& part = in.part;
    const auto value = [](const Parameter* parameter, const Slices& slices) {
      return take(parameter->tensor.detach(), 0, slices);
    };
    return {in.convolved ? identity_convolution(*conv_weight_) : value(conv_weight_, channels_of(part)),
            value(dt_bias_, heads_of(part)), value(A_log_, heads_of(part)), norm_weight_->tensor.detach()};
  }

  DeltaOptions options_;  // of this rank
  int64_t kernel_;
  Parameter *conv_weight_, *dt_bias_, *A_log_, *norm_weight_;
};

// [B, N, K, K]: what the tokens make of the identity, with values of K channels that are zeros.
at::Tensor DeltaNetCore::transition(const Input& in) const {
  const int64_t keys = options_.keys(), K = options_.key_dim, N = options_.value_heads;
  DeltaOptions square = options_;
  square.value_dim = K;
  const at::Tensor& columns = in.columns_SB;
  const int64_t S = columns.size(0), B = columns.size(1);
  const at::Tensor zeros = at::zeros({S, B, 2 * square.values()}, columns.options());
  const at::Tensor gates = columns.narrow(2, columns.size(2) - 2 * N, 2 * N);
  DeltaWeights square_weights = weights(in);
  square_weights.conv_weight =
      square_weights.conv_weight.narrow(0, 0, 1).expand({square.channels(), 1, -1}).contiguous();
  square_weights.norm_weight = at::ones({K}, norm_weight_->tensor.options());
  const at::ScalarType wide = columns.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor identity = at::eye(K, columns.options().dtype(wide)).expand({B, N, K, K}).contiguous();
  const DeltaInput input{
      at::cat({columns.narrow(2, 0, 2 * keys), zeros, gates}, 2), in.document_SB, {.rule = identity}};
  return delta_forward(input, square_weights, square).after.rule;
}

RecurrentMixerOptions mixer_options(const DeltaMixerOptions& options) {
  const DeltaOptions& core = options.core;
  return {.hidden = options.hidden,
          .segments = segments_of(core),
          .inner = core.values(),
          .bias = options.bias,
          .in_init = options.in_init,
          .out_init = options.out_init,
          .passes_states = options.passes_states};
}

}  // namespace

DeltaOptions delta_part(DeltaOptions core, int64_t ranks) {
  TERATRON_ASSERT(core.key_heads % ranks == 0 && core.value_heads % core.key_heads == 0,
                  "{} heads of keys, {} of values on {} ranks", core.key_heads, core.value_heads, ranks);
  core.key_heads /= ranks;
  core.value_heads /= ranks;
  return core;
}

DeltaMixer::DeltaMixer(const Scope& scope, const DeltaMixerOptions& options, const TensorParallel& parallel)
    : RecurrentMixer(scope, mixer_options(options), parallel,
                     std::make_unique<DeltaNetCore>(scope, options, parallel.group)) {}

}  // namespace teratron
