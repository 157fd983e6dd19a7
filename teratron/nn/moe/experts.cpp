#include "teratron/nn/moe/experts.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/kernels/experts/weighted_activation.h"
#include "teratron/nn/autograd/autograd.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The expert of each row; the last one of those after all ends.
at::Tensor experts_of_rows(const at::Tensor& ends_E, int64_t rows) {
  const at::Tensor index = at::arange(rows, ends_E.options());
  return at::searchsorted(ends_E, index, /*out_int32=*/false, /*right=*/true).clamp_max(ends_E.numel() - 1);
}

at::Tensor bias_of_rows(const ExpertParameters& bias, const at::Tensor& ends_E, int64_t rows) {
  return as_block(bias).index_select(0, experts_of_rows(ends_E, rows));
}

// Sums over the rows of each expert, as a GEMM: in a fixed order.
void accumulate_bias_grad(const at::Tensor& dy_RO, const ExpertParameters& bias, const at::Tensor& ends_E) {
  const at::ScalarType wide = main_grad_dtype(dy_RO.scalar_type());
  const at::Tensor row = at::arange(dy_RO.size(0), ends_E.options()).unsqueeze(0);
  const at::Tensor end = ends_E.unsqueeze(1),
                   begin = at::cat({at::zeros({1, 1}, ends_E.options()), end.slice(0, 0, end.size(0) - 1)});
  const at::Tensor member_ER = (row >= begin).logical_and_(row < end);
  // Rows of no expert may hold anything.
  const at::Tensor known = dy_RO.to(wide).masked_fill(member_ER.any(0).logical_not().unsqueeze(1), 0.0);
  const at::Tensor sums_EO = member_ER.to(wide).matmul(known);
  for (size_t e = 0; e < bias.size(); ++e)
    accumulate_grad(*bias[e], sums_EO.select(0, static_cast<int64_t>(e)));
}

void accumulate_zero(Parameter& parameter) {
  accumulate_grad(parameter, [](const at::Tensor& sum, bool add) {
    if (!add) sum.zero_();
  });
}

// Gradient of the probabilities; zero in rows of no expert.
at::Tensor probability_grad(const at::Tensor& product_R, const at::Tensor& ends_E) {
  const at::Tensor row = at::arange(product_R.size(0), ends_E.options());
  return product_R.masked_fill(row >= ends_E.select(0, -1), 0.0);
}

struct GroupedMlp : torch::autograd::Function<GroupedMlp> {
  struct Args {
    const Experts* experts;
    bool training;  // backward will run
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_RH, const at::Tensor& probs_R,
                            const at::Tensor& /*anchor*/, const at::Tensor& ends_E, const Args& args) {
    const auto& [experts, training] = args;
    const GroupedGemm gemm(ends_E, x_RH);
    const Experts::Layer &fc1 = experts->fc1(), &fc2 = experts->fc2();
    const bool saves = training && !fc1.matmul->is_frozen();
    const ExpertMatmul::Operand x =
        fc1.matmul->input(x_RH, gemm, {.columns = saves, .record_amax = training});
    at::Tensor z = fc1.matmul->forward(x, gemm);
    if (!fc1.bias.empty()) z.add_(bias_of_rows(fc1.bias, ends_E, z.size(0)));
    if (fc1.lora) fc1.lora->add_(z, x_RH, gemm);
    const at::Tensor p_R = probs_R.to(main_grad_dtype(x_RH.scalar_type())).contiguous();
    const at::Tensor h =
        weighted_activation_forward(glu_input(z, experts->glu()), p_R, experts->activation());
    at::Tensor y_RH =
        fc2.matmul->forward(fc2.matmul->input(h, gemm, {.columns = false, .record_amax = training}), gemm);
    if (fc2.lora) fc2.lora->add_(y_RH, h, gemm);
    if (experts->adds_output_bias()) {
      const at::Tensor bias = bias_of_rows(fc2.bias, ends_E, y_RH.size(0));
      y_RH.add_(bias * p_R.to(bias.scalar_type()).unsqueeze(1));
    }
    context->save_for_backward(
        {saves ? x.columns : at::Tensor(), x.scale_inv, fc1.lora ? x_RH : at::Tensor(), probs_R, ends_E});
    save_releasable(context, "z", z);
    save_pointer(context, "experts", experts);
    return y_RH;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const ExpertMatmul::Operand x{.columns = saved[0], .scale_inv = saved[1]};
    const at::Tensor &x_RH = saved[2], &probs_R = saved[3], &ends_E = saved[4];
    const auto& experts = *saved_pointer<const Experts>(context, "experts");
    const Experts::Layer &fc1 = experts.fc1(), &fc2 = experts.fc2();
    const at::Tensor z = release(context, "z"), dy_RH = gradients[0].contiguous();
    const GroupedGemm gemm(ends_E, dy_RH);
    const at::ScalarType wide = main_grad_dtype(dy_RH.scalar_type());
    const at::Tensor p_R = probs_R.to(wide).contiguous();
    const ExpertMatmul::Operand dy = fc2.matmul->output_grad(dy_RH, gemm);
    const at::Tensor da = fc2.matmul->input_grad(dy, gemm);
    const at::Tensor activated = glu_input(z, experts.glu());
    if (fc2.lora) {
      const at::Tensor h = weighted_activation_forward(activated, p_R, experts.activation());
      fc2.lora->backward_(da, dy_RH, h, gemm);
    }
    const auto [h, dactivated_RF, dp_R] =
        weighted_activation_backward(da, activated, p_R, experts.activation());
    const at::Tensor dz_RF = glu_input_grad(dactivated_RF, z, experts.glu());
    accumulate_weight_grad(fc2, dy, h, gemm);
    if (experts.adds_output_bias()) {
      const at::Tensor bias = bias_of_rows(fc2.bias, ends_E, dy_RH.size(0));
      dp_R.add_((dy_RH.to(wide) * bias.to(wide)).sum(1));
      accumulate_bias_grad(dy_RH * p_R.to(dy_RH.scalar_type()).unsqueeze(1), fc2.bias, ends_E);
    } else {
      for (Parameter* bias : fc2.bias) accumulate_zero(*bias);
    }
    if (!fc1.bias.empty()) accumulate_bias_grad(dz_RF, fc1.bias, ends_E);
    const ExpertMatmul::Operand dz = fc1.matmul->output_grad(dz_RF, gemm);
    fc1.matmul->accumulate_weight_grad(dz, x, gemm);
    const at::Tensor dx_RH = fc1.matmul->input_grad(dz, gemm);
    if (fc1.lora) fc1.lora->backward_(dx_RH, dz_RF, x_RH, gemm);
    return {dx_RH, probability_grad(dp_R, ends_E).to(probs_R.scalar_type()), at::Tensor(), at::Tensor(),
            at::Tensor()};
  }

  // With an input that is computed again.
  static void accumulate_weight_grad(const Experts::Layer& layer, const ExpertMatmul::Operand& dy,
                                     const at::Tensor& x, const GroupedGemm& gemm) {
    ExpertMatmul::Operand input;
    if (!layer.matmul->is_frozen())
      input = layer.matmul->input(x, gemm, {.rows = false, .record_amax = false});
    layer.matmul->accumulate_weight_grad(dy, input, gemm);
  }
};

// Sharded along `dim` in segments of this length: gate|up.
Shard expert_shard(std::vector<int64_t> shape, int64_t dim, int64_t segment, const Group& tensor) {
  if (tensor.size == 1) return Shard::replicated(std::move(shape));
  const std::vector<int64_t> segments(static_cast<size_t>(shape[dim] / segment), segment);
  return Shard::split_segments(std::move(shape), dim, segments, tensor.size, tensor.rank);
}

}  // namespace

// Buffers hold parameters in the reverse order of registration: those of consecutive experts follow each
// other (as_block()).
Experts::Experts(const Scope& scope, const ExpertsOptions& options, const ExpertParallel& parallel)
    : activation_(options.activation), glu_(options.glu), first_(parallel.tensor.rank == 0) {
  const Scope all = (scope / "experts").replicated_over(Axis::edp);
  const ExpertRange local = parallel.local(options.experts);
  const int64_t width = parts_of(options.activation) * options.ffn_hidden;
  const auto create = [&](const char* layer, const char* name, const ParameterOptions& parameter) {
    ExpertParameters created;
    for (int64_t e = local.first + local.count - 1; e >= local.first; --e)
      created.push_back(&(all / std::to_string(e) / layer).parameter(name, parameter));
    std::reverse(created.begin(), created.end());
    all_.insert(all_.end(), created.begin(), created.end());
    return created;
  };
  const Group& tensor = parallel.tensor;
  const auto create_weight = [&](const char* layer, const ParameterOptions& parameter) {
    return make_expert_matmul(create(layer, "weight", parameter), (all / layer).prefix() + ".weight",
                              scope.fp8());
  };
  fc1_.matmul = create_weight("linear_fc1",
                              {.shard = expert_shard({width, options.hidden}, 0, options.ffn_hidden, tensor),
                               .init = options.fc1_init});
  fc2_.matmul = create_weight("linear_fc2", {.shard = expert_shard({options.hidden, options.ffn_hidden}, 1,
                                                                   options.ffn_hidden, tensor),
                                             .init = options.fc2_init});
  if (const auto& lora = scope.options().lora) {
    const auto adapters = [&](const char* layer, const ExpertsLora::Options& adapter) {
      return ExpertsLora::make(adapter, tensor, [&](const char* name, const ParameterOptions& parameter) {
        return create(layer, name, parameter);
      });
    };
    std::vector<LinearPart> parts;
    if (is_gated(options.activation))
      parts = {{"linear_fc1_gate", options.ffn_hidden}, {"linear_fc1_up", options.ffn_hidden}};
    fc1_.lora =
        adapters("linear_fc1",
                 {*lora, {"linear_fc1", fc1_.matmul->weight()[0]->options.shard, parts}, Lora::Kind::column});
    fc2_.lora = adapters("linear_fc2",
                         {*lora, {"linear_fc2", fc2_.matmul->weight()[0]->options.shard}, Lora::Kind::row});
  }
  if (!options.bias) return;
  const auto bias = [](const Shard& shard, AxisSet grad_sum) {
    return ParameterOptions{.shard = shard, .param_group = ParamGroup::no_weight_decay, .grad_sum = grad_sum};
  };
  fc1_.bias = create("linear_fc1", "bias", bias(expert_shard({width}, 0, options.ffn_hidden, tensor), {}));
  fc2_.bias =
      create("linear_fc2", "bias",
             bias(Shard::replicated({options.hidden}), tensor.size > 1 ? AxisSet(Axis::etp) : AxisSet()));
}

at::Tensor Experts::forward(const at::Tensor& x_RH, const at::Tensor& probs_R,
                            const Permutation& permutation) {
  for (Parameter* parameter : all_) register_use(*parameter);
  at::Tensor anchor = all_.front()->tensor;
  for (const Parameter* parameter : all_) {
    if (parameter->options.trainable) anchor = parameter->tensor;
  }
  const GroupedMlp::Args args{this, at::GradMode::is_enabled()};
  return GroupedMlp::apply(x_RH.contiguous(), probs_R, anchor, permutation.ends_E, args);
}

}  // namespace teratron
