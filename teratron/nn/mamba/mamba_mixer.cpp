#include "teratron/nn/mamba/mamba_mixer.h"

#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [T] tokens b * S + s -> i64 [S, B] documents, numbered through.
at::Tensor documents(const at::Tensor& cu_seqlens, int64_t length, int64_t batch) {
  const at::Tensor starts = at::zeros({length * batch + 1}, cu_seqlens.options().dtype(at::kLong))
                                .index_fill_(0, cu_seqlens.to(at::kLong), 1);
  return starts.narrow(0, 0, length * batch).cumsum(0).view({batch, length}).t();
}

void accumulate(Parameter* parameter, const at::Tensor& gradient) {
  if (parameter) accumulate_grad(*parameter, gradient);
}

// The weights of a part of the heads, without the norm's.
MambaWeights part_of(const MambaWeights& w, const MambaMixer::HeadPart& part) {
  const auto of_channels = [&](const at::Tensor& x) {
    return x.defined() ? x.index_select(0, part.channels) : x;
  };
  const auto of_heads = [&](const at::Tensor& x) { return x.narrow(0, part.first_head, part.core.heads); };
  return {of_channels(w.conv_weight),
          of_channels(w.conv_bias),
          of_heads(w.dt_bias),
          of_heads(w.A_log),
          of_heads(w.D),
          at::Tensor()};
}

// Gradients of a part of the heads, zeros for the others.
MambaWeights whole_gradients(const MambaWeights& d, const MambaWeights& like,
                             const MambaMixer::HeadPart& part) {
  const auto zeros = [&](const at::Tensor& x, const at::Tensor& g) {
    return at::zeros(x.sizes(), g.options());
  };
  const auto of_channels = [&](const at::Tensor& g, const at::Tensor& x) {
    return g.defined() ? zeros(x, g).index_copy_(0, part.channels, g) : g;
  };
  const auto of_heads = [&](const at::Tensor& g, const at::Tensor& x) {
    const at::Tensor all = zeros(x, g);
    all.narrow(0, part.first_head, part.core.heads).copy_(g);
    return all;
  };
  return {of_channels(d.conv_weight, like.conv_weight), of_channels(d.conv_bias, like.conv_bias),
          of_heads(d.dt_bias, like.dt_bias), of_heads(d.A_log, like.A_log), of_heads(d.D, like.D)};
}

// Saves its input alone.
struct CoreFunction : torch::autograd::Function<CoreFunction> {
  struct Args {
    const MambaMixer::Parameters* parameters;
    const MambaOptions* options;
    const MambaMixer::HeadPart* part;  // null: all heads
    at::Tensor cu_seqlens;             // may be undefined
  };

  static MambaInput input_of(const at::Tensor& zxbcdt_SB, const at::Tensor& cu_seqlens) {
    MambaInput input{.zxbcdt_SB = zxbcdt_SB};
    if (cu_seqlens.defined()) input.document_SB = documents(cu_seqlens, zxbcdt_SB.size(0), zxbcdt_SB.size(1));
    return input;
  }

  static MambaWeights weights_of(const MambaMixer::Parameters& parameters, const MambaMixer::HeadPart* part) {
    return part ? part_of(parameters.tensors(), *part) : parameters.tensors();
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& zxbcdt_SB,
                            const at::Tensor& /*anchor*/, const Args& args) {
    context->save_for_backward({zxbcdt_SB, args.cu_seqlens});
    save_pointer(context, "parameters", args.parameters);
    save_pointer(context, "options", args.options);
    save_pointer(context, "part", args.part);
    const MambaWeights weights = weights_of(*args.parameters, args.part);
    return mamba_forward(input_of(zxbcdt_SB, args.cu_seqlens), weights, *args.options).y_SB;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& parameters = *saved_pointer<const MambaMixer::Parameters>(context, "parameters");
    const auto& options = *saved_pointer<const MambaOptions>(context, "options");
    const auto* const part = saved_pointer<const MambaMixer::HeadPart>(context, "part");
    const MambaGradients result = mamba_backward(gradients[0], at::Tensor(), input_of(saved[0], saved[1]),
                                                 weights_of(parameters, part), options);
    const MambaWeights d =
        part ? whole_gradients(result.weights, parameters.tensors(), *part) : result.weights;
    accumulate(parameters.conv_weight, d.conv_weight);
    accumulate(parameters.conv_bias, d.conv_bias);
    accumulate(parameters.dt_bias, d.dt_bias);
    accumulate(parameters.A_log, d.A_log);
    accumulate(parameters.D, d.D);
    if (!part) accumulate(parameters.norm_weight, d.norm_weight);
    return {result.dzxbcdt_SB, at::Tensor(), at::Tensor()};
  }
};

struct GatedNormFunction : torch::autograd::Function<GatedNormFunction> {
  struct Args {
    Parameter* weight;  // may be null
    const MambaOptions* options;
  };

  static at::Tensor weight_of(const Parameter* weight) {
    return weight ? weight->tensor.detach() : at::Tensor();
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& y_SB, const at::Tensor& z_SB,
                            const at::Tensor& /*anchor*/, const Args& args) {
    context->save_for_backward({y_SB, z_SB});
    save_pointer(context, "weight", args.weight);
    save_pointer(context, "options", args.options);
    return mamba_gated_norm(y_SB, z_SB, weight_of(args.weight), *args.options);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    auto* const weight = saved_pointer<Parameter>(context, "weight");
    const MambaNormGradients g =
        mamba_gated_norm_backward(gradients[0], saved[0], saved[1], weight_of(weight),
                                  *saved_pointer<const MambaOptions>(context, "options"));
    accumulate(weight, g.dweight);
    return {g.dy_SB, g.dz_SB, at::Tensor(), at::Tensor()};
  }
};

at::Tensor indices(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

MambaMixer::HeadPart head_part(const MambaOptions& core, const Group& group, at::Device device) {
  const int64_t d = core.inner(), n = core.state, ranks = group.size;
  MambaMixer::HeadPart part{.core = core};
  part.core.gate = MambaGate::none;
  part.core.heads = core.heads / ranks;
  part.core.groups = std::max<int64_t>(core.groups / ranks, 1);
  part.first_head = group.rank * part.core.heads;
  std::vector<int64_t> columns, channels;
  const auto add = [](std::vector<int64_t>& to, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to.push_back(first + i);
  };
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> own;  // of x | B | C
    const int64_t first_group = rank * core.groups / ranks;
    add(own, rank * part.core.inner(), part.core.inner());
    for (const int64_t section : {d, d + core.groups * n})
      add(own, section + first_group * n, part.core.groups * n);
    columns.insert(columns.end(), own.begin(), own.end());
    add(columns, core.channels() + rank * part.core.heads, part.core.heads);
    if (rank == group.rank) channels = own;
  }
  part.columns = indices(columns, device);
  part.channels = indices(channels, device);
  return part;
}

// A uniform in [1, 16]; u is in [-1, 1].
at::Tensor log_of_decay(const at::Tensor& u) {
  return (8.5 + 7.5 * u).log();
}

// softplus of it is exp(uniform) in [0.001, 0.1].
at::Tensor bias_of_time_step(const at::Tensor& u) {
  const double low = std::log(0.001), high = std::log(0.1);
  const at::Tensor dt = ((high + low) / 2 + (high - low) / 2 * u).exp().clamp_min(1e-4);
  return dt + dt.neg().expm1().neg().log();
}

MambaMixer::Parameters create_parameters(const Scope& scope, const MambaMixerOptions& options,
                                         const Group& group) {
  const MambaOptions& core = options.core;
  const int64_t kernel = options.conv_kernel;
  const bool wide = scope.options().dtype == at::kDouble;
  const double bound = 1.0 / std::sqrt(static_cast<double>(kernel));  // of PyTorch's convolutions
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
  MambaMixer::Parameters all{};
  all.conv_weight = &conv.parameter(
      "weight", {.shard = by_channel({core.channels(), 1, kernel}), .init = Init::uniform(bound)});
  if (options.conv_bias)
    all.conv_bias = vector(conv, "bias", by_channel({core.channels()}), Init::uniform(bound));
  all.dt_bias = of_heads("dt_bias", Init::mapped(bias_of_time_step));
  all.A_log = of_heads("A_log", Init::mapped(log_of_decay));
  all.D = of_heads("D", Init::ones());
  if (core.gate != MambaGate::alone)
    all.norm_weight = vector(scope / "norm", "weight",
                             Shard::split({core.inner()}, 0, group.size, group.rank), Init::ones());
  return all;
}

MambaStates rows_of(const MambaStates& states, int64_t first, int64_t count) {
  return {states.conv.narrow(0, first, count), states.ssm.narrow(0, first, count)};
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

MambaWeights MambaMixer::Parameters::tensors() const {
  const auto value = [](const Parameter* parameter) {
    return parameter ? parameter->tensor.detach() : at::Tensor();
  };
  return {value(conv_weight), value(conv_bias), value(dt_bias), value(A_log), value(D), value(norm_weight)};
}

at::Tensor MambaMixer::Parameters::anchor() const {
  return grad_anchor({conv_weight, conv_bias, dt_bias, A_log, D, norm_weight});
}

std::vector<Parameter*> MambaMixer::Parameters::all() const {
  std::vector<Parameter*> present;
  for (Parameter* parameter : {conv_weight, conv_bias, dt_bias, A_log, D, norm_weight}) {
    if (parameter) present.push_back(parameter);
  }
  return present;
}

MambaMixer::MambaMixer(const Scope& scope, const MambaMixerOptions& options, const TensorParallel& parallel)
    : options_(options),
      core_(mamba_part(options.core, parallel.group.size)),
      tensors_(scope.options().tensors()),
      in_(scope / "in_proj",
          {.in = options.hidden,
           .out = options.core.width(),
           .bias = options.bias,
           .init = options.in_init,
           .segments = mamba_segments(options.core)},
          parallel),
      parameters_(create_parameters(scope, options, parallel.group)),
      out_(
          scope / "out_proj",
          {.in = options.core.inner(), .out = options.hidden, .bias = options.bias, .init = options.out_init},
          parallel) {}

Hidden MambaMixer::forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual,
                                        const LayerContext& context, LayerState* state) {
  const at::Tensor zxbcdt_SBF = apply_bias_grad(in_.forward(normed_SBH.tensor(), nullptr, &residual.dropout));
  for (Parameter* parameter : parameters_.all()) register_use(*parameter);
  const at::Tensor y_SBD =
      state ? generate(zxbcdt_SBF, context, static_cast<LayerStates&>(*state)) : train(zxbcdt_SBF, context);
  return out_.forward_add_residual(y_SBD, residual);
}

at::Tensor MambaMixer::train(const at::Tensor& zxbcdt_SBF, const LayerContext& context) {
  if (context.context_parallel.size() > 1) return train_by_heads(zxbcdt_SBF, context);
  const CoreFunction::Args args{&parameters_, &core_, nullptr, context.segments.cu_seqlens_q};
  return CoreFunction::apply(zxbcdt_SBF, parameters_.anchor(), args);
}

// x, B, C and dt go to the ranks of their heads, y comes back; z stays.
at::Tensor MambaMixer::train_by_heads(const at::Tensor& zxbcdt_SBF, const LayerContext& context) {
  const auto& [group, cut] = context.context_parallel;
  if (!heads_) heads_ = std::make_unique<HeadPart>(head_part(core_, group, zxbcdt_SBF.device()));
  const int64_t d = core_.inner();
  const at::Tensor sent = zxbcdt_SBF.narrow(2, d, core_.width() - d).index_select(2, heads_->columns);
  const at::Tensor columns = permute_tokens(all_to_all(sent, 2, 0, group), cut->order, cut->inverse_order);
  const CoreFunction::Args args{&parameters_, &heads_->core, heads_.get(), context.segments.cu_seqlens_q};
  const at::Tensor y = CoreFunction::apply(columns, parameters_.anchor(), args);
  const at::Tensor y_SBD = all_to_all(permute_tokens(y, cut->inverse_order, cut->order), 0, 2, group);
  return GatedNormFunction::apply(y_SBD, zxbcdt_SBF.narrow(2, 0, d), parameters_.anchor(),
                                  GatedNormFunction::Args{parameters_.norm_weight, &core_});
}

at::Tensor MambaMixer::generate(const at::Tensor& zxbcdt_T1F, const LayerContext& context,
                                LayerStates& states) const {
  auto& conv = static_cast<SlotState&>(*states[0]);
  auto& ssm = static_cast<SlotState&>(*states[1]);
  const GenerationBatch& batch = *context.generation;
  const MambaWeights weights = parameters_.tensors();
  const MambaStates before{conv.read(context), ssm.read(context)};
  const int64_t tokens = zxbcdt_T1F.size(0), steps = batch.decode_rows;
  std::vector<at::Tensor> y, after_conv, after_ssm;
  const auto add = [&](const at::Tensor& y_T1D, const MambaStates& after) {
    y.push_back(y_T1D);
    after_conv.push_back(after.conv);
    after_ssm.push_back(after.ssm);
  };
  if (steps > 0) {
    const MambaOutput stepped =
        mamba_step(zxbcdt_T1F.narrow(0, 0, steps).squeeze(1), rows_of(before, 0, steps), weights, core_);
    add(stepped.y_SB.unsqueeze(1), stepped.after);
  }
  for (int64_t r = steps; !batch.has_single_tokens(tokens) && r < std::ssize(batch.rows); ++r) {
    const GenerationRow& row = batch.rows[r];
    const MambaOutput prompt = mamba_forward(
        {.zxbcdt_SB = zxbcdt_T1F.narrow(0, row.first_token, row.tokens), .before = rows_of(before, r, 1)},
        weights, core_);
    add(prompt.y_SB, prompt.after);
  }
  conv.write(at::cat(after_conv).to(before.conv.scalar_type()), context);
  ssm.write(at::cat(after_ssm).to(before.ssm.scalar_type()), context);
  return at::cat(y);
}

std::unique_ptr<LayerState> MambaMixer::make_state(LayerState* /*before*/) const {
  const auto model = c10::typeMetaToScalarType(tensors_.dtype());
  const at::ScalarType wide = model == at::kDouble ? at::kDouble : at::kFloat;
  auto states = std::make_unique<LayerStates>();
  states->add(std::make_unique<SlotState>(at::IntArrayRef{options_.conv_kernel - 1, core_.channels()},
                                          tensors_.dtype(options_.conv_state_dtype.value_or(model))));
  states->add(std::make_unique<SlotState>(at::IntArrayRef{core_.heads, core_.head_dim, core_.state},
                                          tensors_.dtype(options_.ssm_state_dtype.value_or(wide))));
  return states;
}

}  // namespace teratron
