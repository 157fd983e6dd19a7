#include "teratron/nn/mamba/mamba_mixer.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/recurrent/recurrent_init.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void accumulate(Parameter* parameter, const at::Tensor& gradient) {
  if (parameter) accumulate_grad(*parameter, gradient);
}

at::Tensor value_of(const Parameter* parameter) {
  return parameter ? parameter->tensor.detach() : at::Tensor();
}

struct GatedNormFunction : torch::autograd::Function<GatedNormFunction> {
  struct Args {
    Parameter* weight;  // may be null
    const MambaOptions* options;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& y_SB, const at::Tensor& z_SB,
                            const at::Tensor& /*anchor*/, const Args& args) {
    context->save_for_backward({y_SB, z_SB});
    save_pointer(context, "weight", args.weight);
    save_pointer(context, "options", args.options);
    return mamba_gated_norm(y_SB, z_SB, value_of(args.weight), *args.options);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto* const weight = saved_pointer<Parameter>(context, "weight");
    const MambaNormGradients g =
        mamba_gated_norm_backward(gradients[0], saved[0], saved[1], value_of(weight),
                                  *saved_pointer<const MambaOptions>(context, "options"));
    accumulate(weight, g.dweight);
    return {g.dy_SB, g.dz_SB, at::Tensor(), at::Tensor()};
  }
};

// softplus of it is exp(uniform) in [0.001, 0.1].
at::Tensor bias_of_time_step(const at::Tensor& u) {
  const double low = std::log(0.001), high = std::log(0.1);
  const at::Tensor dt = ((high + low) / 2 + (high - low) / 2 * u).exp().clamp_min(1e-4);
  return dt + dt.neg().expm1().neg().log();
}

Slices shifted(Slices slices, int64_t columns) {
  for (Slice& slice : slices) slice.first += columns;
  return slices;
}

class MambaCore final : public RecurrentCore {
 public:
  MambaCore(const Scope& scope, const MambaMixerOptions& options, const Group& group);

  Output forward(const Input& in, const States& before) const override {
    return output_of(mamba_forward({in.columns_SB, in.document_SB, {before.conv, before.recurrent}},
                                   weights(in), options_of(in.part)));
  }
  at::Tensor step(const at::Tensor& columns_R, const StateTables& tables) const override {
    return mamba_step(columns_R, tables, weights(Input{}), options_);
  }
  Backward backward(const at::Tensor& dy_SB, const Input& in, const Ends& ends) const override;

  ConvolutionPart convolution() const override {
    return {{options_.inner(), options_.channels()}, conv_weight_, conv_bias_};
  }
  /// [B, H, 1, 1]: the product of the decays.
  at::Tensor transition(const Input& in) const override;
  at::Tensor apply(const at::Tensor& transition, const at::Tensor& state) const override {
    return transition * state;
  }
  at::Tensor apply_transposed(const at::Tensor& transition, const at::Tensor& state) const override {
    return transition * state;
  }

  /// x, B, C and dt go to the ranks of their heads, z stays.
  Slices columns_of(const HeadPart& part) const override;
  at::Tensor finish(const at::Tensor& y_SB, const at::Tensor& columns_SB) const override;

  std::vector<Parameter*> parameters() const override;
  std::vector<int64_t> conv_shape() const override { return {kernel_ - 1, options_.channels()}; }
  std::vector<int64_t> recurrent_shape() const override {
    return {options_.heads, options_.head_dim, options_.state};
  }

 private:
  static Output output_of(const MambaOutput& output) {
    return {output.y_SB, {output.after.conv, output.after.ssm}};
  }
  MambaOptions options_of(const HeadPart& part) const;
  Slices heads_of(const HeadPart& part) const { return slices_of({options_.heads}, part); }
  Slices channels_of(const HeadPart& part) const;
  MambaWeights weights(const Input& in) const;

  MambaOptions options_;  // of this rank
  int64_t kernel_;
  Parameter *conv_weight_, *dt_bias_, *A_log_, *D_;
  // Null: there is none.
  Parameter* conv_bias_ = nullptr;
  Parameter* norm_weight_ = nullptr;
};

MambaCore::MambaCore(const Scope& scope, const MambaMixerOptions& options, const Group& group)
    : options_(mamba_part(options.core, group.size)), kernel_(options.conv_kernel) {
  const MambaOptions& core = options.core;
  const bool wide = scope.options().dtype == at::kDouble;
  const Init of_conv = of_convolution(kernel_);
  const auto by_channel = [&](std::vector<int64_t> shape) {
    return Shard::split_segments(std::move(shape), 0, mamba_conv_segments(core), group.size, group.rank);
  };
  const auto vector = [&](const Scope& at, const char* name, const Shard& shard, const Init& init) {
    return &at.parameter(name, {.shard = shard, .init = init, .param_group = ParamGroup::no_weight_decay});
  };
  const auto of_heads = [&](const char* name, const Init& init) {
    return &scope.parameter(name, {.shard = Shard::split({core.heads}, 0, group.size, group.rank),
                                   .init = init,
                                   .param_group = ParamGroup::no_weight_decay,
                                   .dtype = wide ? at::kDouble : at::kFloat});
  };
  const Scope conv = scope / "conv1d";
  conv_weight_ =
      &conv.parameter("weight", {.shard = by_channel({core.channels(), 1, kernel_}), .init = of_conv});
  if (options.conv_bias) conv_bias_ = vector(conv, "bias", by_channel({core.channels()}), of_conv);
  dt_bias_ = of_heads("dt_bias", Init::mapped(bias_of_time_step));
  A_log_ = of_heads("A_log", log_uniform_decay());
  D_ = of_heads("D", Init::ones());
  if (core.gate != MambaGate::alone)
    norm_weight_ = vector(scope / "norm", "weight", Shard::split({core.inner()}, 0, group.size, group.rank),
                          Init::ones());
}

RecurrentCore::Backward MambaCore::backward(const at::Tensor& dy_SB, const Input& in,
                                            const Ends& ends) const {
  const MambaGradients result =
      mamba_backward(dy_SB, ends.dafter, {in.columns_SB, in.document_SB, {.ssm = ends.before}}, weights(in),
                     options_of(in.part));
  const Backward gradients{result.dzxbcdt_SB, result.dssm};
  if (!ends.accumulates) return gradients;
  const MambaWeights& d = result.weights;
  const auto add = [](Parameter* parameter, const at::Tensor& gradient, const Slices& slices) {
    if (parameter) accumulate_grad(*parameter, put_back(gradient, slices, parameter->tensor));
  };
  if (!in.convolved) {
    add(conv_weight_, d.conv_weight, channels_of(in.part));
    add(conv_bias_, d.conv_bias, channels_of(in.part));
  }
  add(dt_bias_, d.dt_bias, heads_of(in.part));
  add(A_log_, d.A_log, heads_of(in.part));
  add(D_, d.D, heads_of(in.part));
  if (in.part.count == 1) accumulate(norm_weight_, d.norm_weight);
  return gradients;
}

at::Tensor MambaCore::transition(const Input& in) const {
  const at::ScalarType wide = dt_bias_->tensor.scalar_type();
  const at::Tensor raw_SBH =
      in.columns_SB.narrow(2, options_.width() - options_.heads, options_.heads).to(wide) +
      dt_bias_->tensor.detach();
  at::Tensor dt_SBH = at::softplus(raw_SBH).clamp_min(options_.time_step_min);
  if (std::isfinite(options_.time_step_max)) dt_SBH = dt_SBH.clamp_max(options_.time_step_max);
  return (dt_SBH.sum(0) * -A_log_->tensor.detach().exp()).exp().unsqueeze(-1).unsqueeze(-1);
}

// The gated norm of a part follows in finish().
MambaOptions MambaCore::options_of(const HeadPart& part) const {
  MambaOptions options = options_;
  if (part.count == 1) return options;
  options.gate = MambaGate::none;
  options.heads /= part.count;
  options.groups = std::max<int64_t>(options.groups / part.count, 1);
  return options;
}

// More ranks than groups share the B and C of one.
Slices MambaCore::channels_of(const HeadPart& part) const {
  const MambaOptions of_part = options_of(part);
  const int64_t d = options_.inner(), n = options_.state, groups = of_part.groups * n;
  const int64_t first = part.index * options_.groups / part.count * n;
  return {{part.index * of_part.inner(), of_part.inner()},
          {d + first, groups},
          {d + options_.groups * n + first, groups}};
}

Slices MambaCore::columns_of(const HeadPart& part) const {
  Slices slices = shifted(channels_of(part), options_.inner());
  slices.push_back(shifted(heads_of(part), options_.inner() + options_.channels()).front());
  return slices;
}

at::Tensor MambaCore::finish(const at::Tensor& y_SB, const at::Tensor& columns_SB) const {
  return GatedNormFunction::apply(y_SB, columns_SB.narrow(2, 0, options_.inner()),
                                  grad_anchor({conv_weight_, norm_weight_}),
                                  GatedNormFunction::Args{norm_weight_, &options_});
}

std::vector<Parameter*> MambaCore::parameters() const {
  std::vector<Parameter*> present;
  for (Parameter* parameter : {conv_weight_, conv_bias_, dt_bias_, A_log_, D_, norm_weight_}) {
    if (parameter) present.push_back(parameter);
  }
  return present;
}

MambaWeights MambaCore::weights(const Input& in) const {
  const HeadPart& part = in.part;
  const auto taken = [](const Parameter* parameter, const Slices& slices) {
    return parameter ? take(parameter->tensor.detach(), 0, slices) : at::Tensor();
  };
  return {in.convolved ? identity_convolution(*conv_weight_) : taken(conv_weight_, channels_of(part)),
          in.convolved ? at::Tensor() : taken(conv_bias_, channels_of(part)),
          taken(dt_bias_, heads_of(part)),
          taken(A_log_, heads_of(part)),
          taken(D_, heads_of(part)),
          part.count == 1 ? value_of(norm_weight_) : at::Tensor()};
}

RecurrentMixerOptions mixer_options(const MambaMixerOptions& options) {
  return {.hidden = options.hidden,
          .segments = mamba_segments(options.core),
          .inner = options.core.inner(),
          .multipliers = options.multipliers,
          .bias = options.bias,
          .in_init = options.in_init,
          .out_init = options.out_init,
          .conv_state_dtype = options.conv_state_dtype,
          .recurrent_state_dtype = options.ssm_state_dtype,
          .passes_states = options.passes_states};
}

}  // namespace

bool divides_heads(const MambaOptions& core, int64_t ranks) {
  return core.heads % ranks == 0 && (core.groups % ranks == 0 || ranks % core.groups == 0);
}

std::vector<int64_t> mamba_segments(const MambaOptions& core) {
  const int64_t gn = core.groups * core.state;
  return {core.inner(), core.inner(), gn, gn, core.heads};
}

std::vector<int64_t> mamba_conv_segments(const MambaOptions& core) {
  const int64_t gn = core.groups * core.state;
  return {core.inner(), gn, gn};
}

MambaOptions mamba_part(MambaOptions core, int64_t ranks) {
  TERATRON_ASSERT(core.heads % ranks == 0 && core.groups % ranks == 0 && core.heads % core.groups == 0,
                  "{} heads in {} groups on {} ranks", core.heads, core.groups, ranks);
  core.heads /= ranks;
  core.groups /= ranks;
  return core;
}

MambaMixer::MambaMixer(const Scope& scope, const MambaMixerOptions& options, const TensorParallel& parallel)
    : RecurrentMixer(scope, mixer_options(options), parallel,
                     std::make_unique<MambaCore>(scope, options, parallel.group)) {}

}  // namespace teratron
