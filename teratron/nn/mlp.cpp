#include "teratron/nn/mlp.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/nn/autograd/autograd.h"
#include "teratron/nn/dropout.h"
#include "teratron/nn/lora.h"
#include "teratron/nn/multipliers.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// a = activation(z), the input of fc2.
LazyTensor activation_output(const at::Tensor& z, Activation activation) {
  return {[=] { return activation_forward(z, at::Tensor(), activation); },
          [=](const Fp8Cast& cast) { return activation_forward_fp8(z, activation, cast); }};
}

// What follows fc1's GEMM.
struct ActivationOfBias {
  Activation kind;
  Parameter* bias;  // fc1's, null: none
};

// dz, the output gradient of fc1. Its column sum is the gradient of fc1's bias.
LazyTensor pre_activation_grad(const at::Tensor& da, const at::Tensor& z, const ActivationOfBias& of) {
  const auto& [activation, bias] = of;
  return {[=] {
            const ActivationGradients dz =
                activation_backward(da, z, at::Tensor(), activation, {.dbias = grad_sink(bias)});
            if (bias) accumulate_grad(*bias, dz.dbias);
            return dz.dx;
          },
          [=](const Fp8Cast& cast) {
            const Fp8ActivationGradients dz =
                activation_backward_fp8(da, z, activation, cast, grad_sink(bias));
            if (bias) accumulate_grad(*bias, dz.dbias);
            return dz.dx;
          }};
}

// Gradients within the GEMM da = dy W of fc2, without da in memory.
ActivationGradients fused_pre_activation_grad(AsyncTensor& dy_SBH, const ParallelMatmul& fc2,
                                              const AddedProduct& added, const at::Tensor& z,
                                              const ActivationOfBias& activation) {
  const at::Tensor dy = as_rows(dy_SBH.tensor), dz = at::empty_like(z);
  std::optional<GradSink> dbias = grad_sink(activation.bias);
  dy_SBH.overlap_local_first([&](int64_t begin, int64_t end) {
    const OutputProduct product{slice_rows(dy, begin, end).contiguous(), fc2.weight().tensor,
                                slice_rows(added, begin, end)};
    const at::Tensor sum = linear_activation_backward({slice_rows(dz, begin, end), dbias}, product,
                                                      slice_rows(z, begin, end), activation.kind)
                               .dbias;
    if (dbias) dbias = GradSink{sum, true};
  });
  return {dz, dbias ? dbias->out : at::Tensor()};
}

// One autograd function for both layers: tensors between the GEMMs need not exist in the model's dtype.
struct MlpFunction : torch::autograd::Function<MlpFunction> {
  struct Args {
    const ColumnLinear* fc1;
    const RowLinear* fc2;
    Activation activation;
    Parameter* fc2_bias;         // null: not added by the GEMM
    const DropoutArgs* dropout;  // of adapters
    bool training;               // backward will run
  };
  static constexpr const char *fc1_key = "lora1_", *fc2_key = "lora2_";

  struct Fc1Output {
    at::Tensor z;  // [T, width]; fused: only if training
    LazyTensor a;
    ParallelMatmul::SavedInput x;
    std::vector<int64_t> shape;  // [S, B, width]
  };

  static at::Tensor tensor_of(const Parameter* bias) { return bias ? bias->tensor : at::Tensor(); }

  // Whether the activation and its backward are computed within the GEMMs, without passes over memory.
  static bool fused(const ColumnLinear& fc1, const RowLinear& fc2) {
    return !fc1.matmul().product().quantized() && !fc2.matmul().product().quantized();
  }

  static Fc1Output unfused_fc1(const at::Tensor& x_SBH, const AddedProduct& added, const Args& args) {
    const Matmul::Epilogue epilogue{.bias_O = tensor_of(args.fc1->bias()), .added = added};
    const auto [z_SBF, saved] = args.fc1->matmul().forward(x_SBH, epilogue, args.training);
    const at::Tensor z = as_rows(z_SBF);
    return {z, activation_output(z, args.activation), saved, z_SBF.sizes().vec()};
  }

  static Fc1Output fused_fc1(const at::Tensor& x_SBH, const AddedProduct& added, const Args& args) {
    const ParallelMatmul& fc1 = args.fc1->matmul();
    const at::Tensor &w = fc1.weight().tensor, bias = tensor_of(args.fc1->bias());
    AsyncTensor whole = fc1.gather_input(x_SBH);
    const at::Tensor x = as_rows(whole.tensor);
    const int64_t rows = x.size(0), width = w.size(0);
    const ActivationOutputs out{at::empty({rows, width / parts_of(args.activation)}, x.options()),
                                args.training ? at::empty({rows, width}, x.options()) : at::Tensor()};
    whole.overlap_local_first([&](int64_t begin, int64_t end) {
      const ActivationOutputs tile{slice_rows(out.y, begin, end), slice_rows(out.z, begin, end)};
      linear_activation(tile,
                        {slice_rows(x, begin, end).contiguous(), w, bias, slice_rows(added, begin, end)},
                        args.activation);
    });
    ParallelMatmul::SavedInput saved;
    if (!fc1.is_frozen()) saved.x = whole.gathered_over ? x_SBH : x;
    return {out.z, out.y, saved, whole.tensor.sizes().vec()};
  }

  // The product that the adapter adds; undefined without one.
  static AddedProduct adapt(AutogradContext* context, const char* key, const at::Tensor& x_SBI,
                            const Adapter& adapter) {
    if (!adapter.lora) return {};
    const Lora::Use use = adapter.lora->forward(x_SBI, adapter.dropout);
    use.save(context, key);
    return use.added();
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_SBH, const at::Tensor& /*anchor*/,
                            const std::optional<at::Tensor>& residual, const Args& args) {
    const AddedProduct to_z = adapt(context, fc1_key, x_SBH, {args.fc1->adapter(), args.dropout});
    Fc1Output hidden =
        fused(*args.fc1, *args.fc2) ? fused_fc1(x_SBH, to_z, args) : unfused_fc1(x_SBH, to_z, args);
    AddedProduct to_y;
    if (args.fc2->adapter()) {
      const at::Tensor a = hidden.a.compute();
      to_y = adapt(context, fc2_key, shaped_like(a, hidden.shape), {args.fc2->adapter(), args.dropout});
      hidden.a = a;
    }
    const Matmul::Epilogue epilogue{.bias_O = tensor_of(args.fc2_bias),
                                    .residual_TO = residual ? as_rows(residual->contiguous()) : at::Tensor(),
                                    .added = to_y};
    const auto [y, a] = args.fc2->matmul().forward(hidden.a, hidden.shape, epilogue, args.training);
    context->save_for_backward({hidden.x.x, hidden.x.scale_inv});
    save_releasable(context, "z", hidden.z);
    save_releasable(context, "a", a.x);
    save_releasable(context, "a_scale_inv", a.scale_inv);
    save_pointer(context, "fc1", args.fc1);
    save_pointer(context, "fc2", args.fc2);
    context->saved_data["activation"] = static_cast<int64_t>(args.activation);
    context->saved_data["has_residual"] = residual.has_value();
    return y;
  }

  // The gradient of fc1's output. The temporaries end with their use: a before the activation's backward
  // (unless that overlaps the gather of dy), da and z before the GEMMs of fc1.
  static LazyTensor output_grad_of_fc1(AutogradContext* context, AsyncTensor dy) {
    const auto& fc1 = *saved_pointer<const ColumnLinear>(context, "fc1");
    const auto& fc2 = *saved_pointer<const RowLinear>(context, "fc2");
    const ActivationOfBias activation{static_cast<Activation>(context->saved_data["activation"].toInt()),
                                      fc1.bias()};
    const auto fc2_backward = [&](AsyncTensor dy_SBH, bool needs_da) {
      return fc2.matmul().backward({release(context, "a"), release(context, "a_scale_inv")},
                                   std::move(dy_SBH), needs_da);
    };
    std::optional<Lora::Use> use;
    at::Tensor du;
    if (fc2.adapter()) {
      use = Lora::Use::saved(context, fc2_key);
      du = fc2.adapter()->backward(as_rows(dy.local()), *use);
      use->x_TI.reset();
    }
    if (!fused(fc1, fc2) || (use && use->drops)) {
      const at::Tensor da = as_rows(fc2_backward(std::move(dy), true));
      if (use) fc2.adapter()->add_input_grad_(da, du, *use);
      return pre_activation_grad(da, release(context, "z"), activation);
    }
    const AddedProduct added = use ? fc2.adapter()->added_to_input_grad(du) : AddedProduct{};
    const bool overlaps = dy.gathered_over != nullptr;
    if (!overlaps) fc2_backward(dy, false);
    const ActivationGradients dz =
        fused_pre_activation_grad(dy, fc2.matmul(), added, release(context, "z"), activation);
    if (overlaps) fc2_backward(std::move(dy), false);
    if (fc1.bias()) accumulate_grad(*fc1.bias(), dz.dbias);
    return dz.dx;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& fc1 = *saved_pointer<const ColumnLinear>(context, "fc1");
    const auto& fc2 = *saved_pointer<const RowLinear>(context, "fc2");
    AsyncTensor dy = fc2.matmul().gather_output_grad(gradients[0].contiguous());
    ParallelMatmul::SavedInput x = fc1.matmul().gather_again({saved[0], saved[1]});
    const std::vector<int64_t> shape = dy.tensor.sizes().vec();
    std::optional<Lora::Use> use;
    at::Tensor du;
    const auto operand = [&] {  // da and z end with the expression of dz
      LazyTensor dz = output_grad_of_fc1(context, std::move(dy));
      if (fc1.adapter()) {
        use = Lora::Use::saved(context, fc1_key);
        dz = dz.compute();
        du = fc1.adapter()->backward(dz.compute(), *use);
      }
      return fc1.matmul().product().output_grad(dz);
    };
    const at::Tensor dx = fc1.matmul().backward(std::move(x), operand(), shape, context->needs_input_grad(0));
    if (use && dx.defined()) fc1.adapter()->add_input_grad_(as_rows(dx), du, *use);
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx, at::Tensor(), has_residual ? gradients[0] : at::Tensor(), at::Tensor()};
  }
};

// The activation alone.
struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& z, Activation activation,
                            const GluVariant& glu) {
    context->save_for_backward({z});
    context->saved_data["activation"] = static_cast<int64_t>(activation);
    context->saved_data["slope"] = glu.slope;
    context->saved_data["offset"] = glu.offset;
    context->saved_data["limit"] = glu.limit;
    return activation_forward(glu_input(z, glu), at::Tensor(), activation);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    const at::Tensor z = context->get_saved_variables()[0];
    const GluVariant glu{.slope = context->saved_data["slope"].toDouble(),
                         .offset = context->saved_data["offset"].toDouble(),
                         .limit = context->saved_data["limit"].toDouble()};
    const at::Tensor d =
        activation_backward(gradients[0].contiguous(), glu_input(z, glu), at::Tensor(), activation).dx;
    return {glu_input_grad(d, z, glu), at::Tensor(), at::Tensor()};
  }
};

LinearOptions fc1_options(const MlpOptions& options) {
  LinearOptions linear{
      .in = options.hidden, .out = options.ffn_hidden, .bias = options.bias, .init = options.fc1_init};
  if (is_gated(options.activation)) {
    linear.out = 2 * options.ffn_hidden;
    linear.segments = {options.ffn_hidden, options.ffn_hidden};
    linear.parts = {{"linear_fc1_gate", options.ffn_hidden}, {"linear_fc1_up", options.ffn_hidden}};
  }
  return linear;
}

}  // namespace

Mlp::Mlp(const Scope& scope, const MlpOptions& options, const TensorParallel& parallel)
    : activation_(options.activation),
      gate_multiplier_(options.gate_multiplier),
      glu_(options.glu),
      fc1_(scope / "linear_fc1", fc1_options(options), parallel),
      fc2_(scope / "linear_fc2",
           {.in = options.ffn_hidden,
            .out = options.out > 0 ? options.out : options.hidden,
            .bias = options.bias,
            .init = options.fc2_init},
           parallel) {}

Hidden Mlp::forward_scaled(const at::Tensor& x_SBH, const ResidualDropout& residual) {
  at::Tensor z_SBF = apply_bias_grad(fc1_.forward(x_SBH, nullptr, &residual.dropout));
  const int64_t half = z_SBF.size(-1) / 2;
  if (gate_multiplier_ != 1.0) z_SBF = scale_parts(z_SBF, {half, half}, {gate_multiplier_, 1.0});
  return fc2_.forward_add_residual(ActivationFunction::apply(z_SBF, activation_, glu_), residual);
}

Hidden Mlp::forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual) {
  if (gate_multiplier_ != 1.0 || !glu_.is_plain()) return forward_scaled(normed_SBH.tensor(), residual);
  if (const std::optional<NormedRows> rows = fc1_.normed_rows(normed_SBH)) {
    register_use(fc1_.matmul().weight());
    if (fc1_.bias()) register_use(*fc1_.bias());
    const at::Tensor a = linear_normed_activation(*rows, fc1_.matmul().weight().tensor,
                                                  MlpFunction::tensor_of(fc1_.bias()), activation_);
    return fc2_.forward_add_residual(shaped_like(a, normed_SBH.sizes()), residual);
  }
  const at::Tensor x_SBH = normed_SBH.tensor();
  const LinearEpilogue epilogue = fc2_.fused_epilogue(residual, x_SBH.scalar_type());
  for (const ParallelMatmul* matmul : {&fc1_.matmul(), &fc2_.matmul()}) register_use(matmul->weight());
  for (Parameter* bias : {fc1_.bias(), epilogue.bias}) {
    if (bias) register_use(*bias);
  }
  const MlpFunction::Args args{.fc1 = &fc1_,
                               .fc2 = &fc2_,
                               .activation = activation_,
                               .fc2_bias = epilogue.bias,
                               .dropout = &residual.dropout,
                               .training = at::GradMode::is_enabled()};
  at::Tensor anchor =
      grad_anchor({&fc1_.matmul().weight(), &fc2_.matmul().weight(), fc1_.bias(), epilogue.bias});
  for (const Lora* adapter : {fc1_.adapter(), fc2_.adapter()}) {
    if (!adapter) continue;
    adapter->register_uses();
    anchor = adapter->anchor();
  }
  const at::Tensor y_SBH = MlpFunction::apply(x_SBH, anchor, epilogue.residual_SBO, args);
  return fc2_.add_unfused(y_SBH, epilogue, residual);
}

}  // namespace teratron
