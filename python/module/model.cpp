#include "python/module/model.h"

#include <string>
#include <vector>

#include "python/module/hooks.h"
#include "python/module/tensor_caster.h"
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "teratron/base/error.h"

namespace nb = nanobind;

namespace teratron::python {

namespace {

// How a parameter lies over the tensor-parallel ranks, by Megatron-LM's attributes.
Shard shard_of(nb::handle parameter, const at::Tensor& value, const Group& tensor_parallel) {
  std::vector<int64_t> shape = value.sizes().vec();
  if (!nb::hasattr(parameter, "tensor_model_parallel") ||
      !nb::cast<bool>(nb::bool_(parameter.attr("tensor_model_parallel"))))
    return Shard::replicated(shape);
  const auto dim = nb::cast<int64_t>(parameter.attr("partition_dim"));
  if (dim < 0 || dim >= value.dim())
    throw nb::value_error("partition_dim is not a dimension of the parameter");
  shape[static_cast<size_t>(dim)] *= tensor_parallel.size;
  return Shard::split(shape, dim, tensor_parallel.size, tensor_parallel.rank);
}

class PythonModel final : public Model {
 public:
  PythonModel(const Held& make, const StageContext& part) : Model(part.stage) {
    const nb::gil_scoped_acquire gil;
    const StageSpec& stage = part.stage;
    const nb::tuple made =
        nb::cast<nb::tuple>((*make)(stage.first_layer, stage.layers, stage.embedding, stage.head));
    call_ = Held(made[1]);
    for (const nb::handle pair : nb::list(made[0].attr("named_parameters")()))
      take(nb::cast<std::string>(pair[0]), pair[1], part);
  }

  // A detached output would train nothing.
  static void check_gradient(const at::Tensor& output) {
    if (at::GradMode::is_enabled() && !output.requires_grad())
      throw nb::value_error(
          "the losses of the model's forward() depend on none of its parameters (were they detached?)");
  }

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates*) override {
    const nb::gil_scoped_acquire gil;
    nb::dict values;
    for (Parameter* parameter : parameters_) values[parameter->name.c_str()] = autograd_tensor(*parameter);
    const at::Tensor& hidden = input["hidden"];
    const nb::object before = stage().embedding ? nb::none() : nb::cast(hidden);
    const nb::object result = (*call_)(values, before, nb::cast(PythonBatch(batch)));
    at::Tensor output;
    if (!nb::try_cast(result, output) || !output.defined())
      throw nb::type_error("the model's forward() must return a tensor");
    if (!stage().head) return {{"hidden", checked(output, batch, 3)}};
    check_gradient(output);
    return {{"losses", checked(output, batch, 2)}};
  }

  at::Tensor token_losses(const Activations& output, const MicroBatch&) override { return output["losses"]; }

 private:
  void take(const std::string& name, nb::handle parameter, const StageContext& part) {
    const auto value = nb::cast<at::Tensor>(parameter).detach();
    const ParameterSet::Options& model = part.parameters.options();
    Parameter& ours =
        part.parameters.create(name, {.shard = shard_of(parameter, value, part.parallel.group),
                                      .init = Init::zeros(),
                                      .param_group = {.weight_decay_mult = value.dim() > 1 ? 1.0 : 0.0},
                                      .grad_sum = part.parallel.grad_sum(),
                                      .trainable = nb::cast<at::Tensor>(parameter).requires_grad()});
    const at::NoGradGuard no_grad;
    ours.tensor.copy_(value.to(model.device));
    parameters_.push_back(&ours);
    // Replicas may have drawn other numbers.
    const bool sharded = ours.shard().dim >= 0;
    const Group& group = part.mesh.group(sharded ? replica_axes : replica_axes | Axis::tp);
    if (group.size == 1) return;
    const nb::gil_scoped_release released;
    group.communicator->broadcast(ours.tensor, 0).wait();
  }

  // Hidden states, or losses in fp32.
  at::Tensor checked(const at::Tensor& output, const MicroBatch& batch, int64_t dimensions) const {
    const at::Tensor& tokens = batch["sequence_index"];
    const bool is_whole = tokens.defined() && output.dim() > 1 && output.size(1) == tokens.size(1);
    if (output.dim() != dimensions || !is_whole)
      throw nb::value_error(
          fmt::format("the model's forward() returned the shape [{}]; return {}",
                      fmt::join(output.sizes(), ", "),
                      dimensions == 2 ? "losses [S, B] on the last stage" : "hidden states [S, B, H]")
              .c_str());
    return dimensions == 2 && output.scalar_type() != at::kDouble ? output.to(at::kFloat) : output;
  }

  Held call_;
  std::vector<Parameter*> parameters_;
};

}  // namespace

ModelPlan python_model(ModelPlan plan, const Held& make) {
  plan.build = [make](const StageContext& part) { return std::make_unique<PythonModel>(make, part); };
  plan.inference = {};
  return plan;
}

}  // namespace teratron::python
