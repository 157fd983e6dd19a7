#include "teratron/generate/language_model.h"

#include <ATen/ATen.h>

#include "teratron/comm/collectives.h"

namespace teratron {

LanguageModel language_model(const ModelPlan& plan, ParameterSet& parameters, const Group& tensor_parallel,
                             const InferencePipeline& pipeline) {
  return {.model = plan.build({parameters, pipeline.stage, TensorParallel{tensor_parallel}}),
          .layers = pipeline.stage.layers,
          .vocabulary = plan.vocabulary,
          .max_positions = plan.max_positions,
          .inference = plan.inference,
          .tensor_parallel = tensor_parallel,
          .device = parameters.options().device,
          .dtype = parameters.options().dtype,
          .channels = plan.channels,
          .pipeline = pipeline};
}

LanguageModel language_model(const ModelPlan& plan, ParameterSet& parameters, const Group& tensor_parallel) {
  return language_model(plan, parameters, tensor_parallel, {.stage = {.layers = plan.layers()}});
}

MicroBatch token_batch(const at::Tensor& tokens_T, const at::Tensor& positions_T) {
  const at::Tensor positions_T1 = positions_T.unsqueeze(1);
  return {.tensors = {{"tokens", tokens_T.unsqueeze(1)},
                      {"position_ids", positions_T1},
                      {"sequence_index", positions_T1}},
          .training = false};
}

at::Tensor gathered_logits(const LanguageModel& model, const Activations& output) {
  const at::Tensor local_SBV = model.model->logits(output);
  return gather_from(local_SBV, 2, model.tensor_parallel).narrow(2, 0, model.vocabulary).squeeze(1);
}

at::Tensor logits_of(const LanguageModel& model, std::span<const int64_t> ids, int64_t first,
                     LayerStates* states) {
  const at::NoGradGuard no_grad;
  const auto length = static_cast<int64_t>(ids.size());
  const at::Tensor tokens = at::tensor(at::ArrayRef<int64_t>(ids.data(), ids.size()));
  const at::Tensor positions = at::arange(first, first + length, at::kLong);
  const MicroBatch batch = token_batch(tokens.to(model.device), positions.to(model.device));
  return gathered_logits(model, model.model->forward({}, batch, states)).unsqueeze(1);
}

std::vector<InferenceOutput> outputs_of(const LanguageModel& model, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  std::vector<InferenceOutput> outputs =
      model.model->inference_outputs(model.model->forward({}, batch, nullptr));
  for (InferenceOutput& output : outputs) {
    if (output.vocabulary_parallel) {
      output.tensor =
          gather_from(output.tensor, 2, model.tensor_parallel).narrow(2, 0, model.vocabulary).transpose(0, 1);
    }
    output.tensor = output.tensor.to(at::kCPU, at::kFloat).contiguous();
  }
  return outputs;
}

at::Tensor text_embeddings_of(const LanguageModel& model, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  const at::Tensor embeddings = model.model->text_embeddings(model.model->forward({}, batch, nullptr));
  return embeddings.defined() ? embeddings.to(at::kCPU, at::kFloat).contiguous() : embeddings;
}

}  // namespace teratron
