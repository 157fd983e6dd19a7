#include "teratron/nn/mlp.h"

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/kernels/fp8/activation_fp8.h"
#include "teratron/nn/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// a = activation(z), the input of fc2.
LazyTensor activation_output(const at::Tensor& z, Activation activation) {
  return {[=] { return activation_forward(z, at::Tensor(), activation); },
          [=](const Fp8Cast& cast) { return activation_forward_fp8(z, activation, cast); }};
}

// dz, the output gradient of fc1. Its column sum is the gradient of fc1's bias, which may be null.
LazyTensor pre_activation_grad(const at::Tensor& da, const at::Tensor& z, Activation activation,
                               Parameter* bias) {
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

// The same within the GEMM da = dy W of fc2, without da in memory.
ActivationGradients fused_pre_activation_grad(AsyncTensor& dy_SBH, const ParallelMatmul& fc2,
                                              const at::Tensor& z, Activation activation,
                                              std::optional<GradSink> dbias) {
  const at::Tensor dy = as_rows(dy_SBH.tensor), dz = at::empty_like(z);
  dy_SBH.overlap_local_first([&](int64_t begin, int64_t end) {
    const at::Tensor sum = linear_activation_backward(
                               {slice_rows(dz, begin, end), dbias}, slice_rows(dy, begin, end).contiguous(),
                               fc2.weight().tensor, slice_rows(z, begin, end), activation)
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
    Parameter* fc2_bias;  // null: not added by the GEMM
    bool training;        // backward will run
  };

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

  static Fc1Output unfused_fc1(const at::Tensor& x_SBH, const Args& args) {
    const Matmul::Epilogue epilogue{.bias_O = tensor_of(args.fc1->bias())};
    const auto [z_SBF, saved] = args.fc1->matmul().forward(x_SBH, epilogue, args.training);
    const at::Tensor z = as_rows(z_SBF);
    return {z, activation_output(z, args.activation), saved, z_SBF.sizes().vec()};
  }

  static Fc1Output fused_fc1(const at::Tensor& x_SBH, const Args& args) {
    const ParallelMatmul& fc1 = args.fc1->matmul();
    const at::Tensor &w = fc1.weight().tensor, bias = tensor_of(args.fc1->bias());
    AsyncTensor whole = fc1.gather_input(x_SBH);
    const at::Tensor x = as_rows(whole.tensor);
    const int64_t rows = x.size(0), width = w.size(0);
    const ActivationOutputs out{at::empty({rows, width / parts_of(args.activation)}, x.options()),
                                args.training ? at::empty({rows, width}, x.options()) : at::Tensor()};
    whole.overlap_local_first([&](int64_t begin, int64_t end) {
      const ActivationOutputs tile{slice_rows(out.y, begin, end), slice_rows(out.z, begin, end)};
      linear_activation(tile, slice_rows(x, begin, end).contiguous(), w, bias, args.activation);
    });
    return {out.z, out.y, {whole.gathered_over ? x_SBH : x}, whole.tensor.sizes().vec()};
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_SBH, const at::Tensor& /*anchor*/,
                            const std::optional<at::Tensor>& residual, const Args& args) {
    const Fc1Output hidden = fused(*args.fc1, *args.fc2) ? fused_fc1(x_SBH, args) : unfused_fc1(x_SBH, args);
    const Matmul::Epilogue epilogue{.bias_O = tensor_of(args.fc2_bias),
                                    .residual_TO = residual ? as_rows(residual->contiguous()) : at::Tensor()};
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

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& fc1 = *saved_pointer<const ColumnLinear>(context, "fc1");
    const auto& fc2 = *saved_pointer<const RowLinear>(context, "fc2");
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    AsyncTensor dy = fc2.matmul().gather_output_grad(gradients[0].contiguous());
    ParallelMatmul::SavedInput x = fc1.matmul().gather_again({saved[0], saved[1]});
    // Temporaries in the expression of dz: a is freed before the activation's backward (unless that overlaps
    // the gather of dy), da and z before the GEMMs of fc1.
    const auto fc2_backward = [&](AsyncTensor dy_SBH, bool needs_da) {
      return fc2.matmul().backward({release(context, "a"), release(context, "a_scale_inv")},
                                   std::move(dy_SBH), needs_da);
    };
    const auto fused_backward = [&] {
      const bool overlaps = dy.gathered_over != nullptr;
      if (!overlaps) fc2_backward(dy, false);
      const ActivationGradients dz = fused_pre_activation_grad(dy, fc2.matmul(), release(context, "z"),
                                                               activation, grad_sink(fc1.bias()));
      if (overlaps) fc2_backward(std::move(dy), false);
      if (fc1.bias()) accumulate_grad(*fc1.bias(), dz.dbias);
      return dz.dx;
    };
    const std::vector<int64_t> shape = dy.tensor.sizes().vec();
    const Matmul::Operand dz = fc1.matmul().product().output_grad(
        fused(fc1, fc2) ? fused_backward()
                        : pre_activation_grad(as_rows(fc2_backward(std::move(dy), true)),
                                              release(context, "z"), activation, fc1.bias()));
    const at::Tensor dx = fc1.matmul().backward(std::move(x), dz, shape, context->needs_input_grad(0));
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx, at::Tensor(), has_residual ? gradients[0] : at::Tensor(), at::Tensor()};
  }
};

// activation(z) as a separate function.
struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& z_SBF, Activation activation) {
    context->save_for_backward({z_SBF});
    context->saved_data["activation"] = static_cast<int64_t>(activation);
    return shaped_like(activation_forward(as_rows(z_SBF), at::Tensor(), activation), z_SBF.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor z_SBF = context->get_saved_variables()[0];
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    const at::Tensor da = as_rows(gradients[0].contiguous());
    const at::Tensor dz = activation_backward(da, as_rows(z_SBF), at::Tensor(), activation, {}).dx;
    return {dz.view(z_SBF.sizes()), at::Tensor()};
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
      fc1_(scope / "linear_fc1", fc1_options(options), parallel),
      fc2_(scope / "linear_fc2",
           {.in = options.ffn_hidden, .out = options.hidden, .bias = options.bias, .init = options.fc2_init},
           parallel) {}

Hidden Mlp::forward_with_adapters(const at::Tensor& x_SBH, const ResidualDropout& residual) {
  const at::Tensor z_SBF = apply_bias_grad(fc1_.forward(x_SBH, nullptr, &residual.dropout));
  return fc2_.forward_add_residual(ActivationFunction::apply(z_SBF, activation_), residual);
}

Hidden Mlp::forward_add_residual(const Normed& normed_SBH, const ResidualDropout& residual) {
  if (const std::optional<NormedRows> rows = fc1_.normed_rows(normed_SBH)) {
    register_use(fc1_.matmul().weight());
    if (fc1_.bias()) register_use(*fc1_.bias());
    const at::Tensor a = linear_normed_activation(*rows, fc1_.matmul().weight().tensor,
                                                  MlpFunction::tensor_of(fc1_.bias()), activation_);
    return fc2_.forward_add_residual(shaped_like(a, normed_SBH.sizes()), residual);
  }
  const at::Tensor x_SBH = normed_SBH.tensor();
  if (fc1_.has_adapter() || fc2_.has_adapter()) return forward_with_adapters(x_SBH, residual);
  const LinearEpilogue epilogue = fc2_.fused_epilogue(residual, x_SBH.scalar_type());
  for (const ParallelMatmul* matmul : {&fc1_.matmul(), &fc2_.matmul()}) register_use(matmul->weight());
  for (Parameter* bias : {fc1_.bias(), epilogue.bias}) {
    if (bias) register_use(*bias);
  }
  const MlpFunction::Args args{.fc1 = &fc1_,
                               .fc2 = &fc2_,
                               .activation = activation_,
                               .fc2_bias = epilogue.bias,
                               .training = at::GradMode::is_enabled()};
  const at::Tensor anchor =
      grad_anchor({&fc1_.matmul().weight(), &fc2_.matmul().weight(), fc1_.bias(), epilogue.bias});
  const at::Tensor y_SBH = MlpFunction::apply(x_SBH, anchor, epilogue.residual_SBO, args);
  return fc2_.add_unfused(y_SBH, epilogue, residual);
}

}  // namespace teratron
