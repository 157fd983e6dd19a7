#include "teratron/generate/language_model.h"

#include <ATen/ATen.h>

#include "teratron/comm/collectives.h"

namespace teratron {

LanguageModel language_model(const ModelPlan& plan, ParameterSet& parameters, const Group& tensor_parallel,
                             const InferencePipeline& pipeline) {
  std::vector<std::unique_ptr<Model>> chunks;
  for (const StageSpec& stage : pipeline.chunks)
    chunks.push_back(plan.build({parameters, stage, TensorParallel{tensor_parallel}}));
  return {.chunks = std::move(chunks),
          .vocabulary = plan.vocabulary,
          .max_positions = plan.max_positions,
          .inference = plan.inference,
          .tensor_parallel = tensor_parallel,
          .device = parameters.options().device,
          .dtype = parameters.options().dtype,
          .channels = plan.channels,
          .encodes = plan.encodes,
          .pipeline = pipeline};
}

LanguageModel language_model(const ModelPlan& plan, ParameterSet& parameters, const Group& tensor_parallel) {
  return language_model(plan, parameters, tensor_parallel, {.chunks = {{.layers = plan.layers()}}});
}

MicroBatch token_batch(const at::Tensor& tokens_T, const at::Tensor& positions_T) {
  const at::Tensor positions_T1 = positions_T.unsqueeze(1);
  const at::Tensor tokens_T1 = tokens_T.unsqueeze(1);
  return {.tensors = {{"tokens", tokens_T1},
                      {"position_ids", positions_T1},
                      {"sequence_index", positions_T1},
                      {"decoder_tokens", tokens_T1},
                      {"decoder_index", positions_T1}},
          .training = false};
}

MicroBatch token_batch(const at::Tensor& tokens_T, const at::Tensor& positions_T,
                       const at::Tensor& source_S) {
  MicroBatch batch = token_batch(tokens_T, positions_T);
  batch.tensors.set("encoder_tokens", source_S.unsqueeze(1));
  batch.tensors.set("encoder_index", at::arange(source_S.size(0), source_S.options()).unsqueeze(1));
  return batch;
}

at::Tensor gathered_logits(const LanguageModel& model, const Activations& output) {
  const at::Tensor local_SBV = model.chunks.back()->logits(output);
  return gather_from(local_SBV, 2, model.tensor_parallel).narrow(2, 0, model.vocabulary).squeeze(1);
}

at::Tensor logits_of(const LanguageModel& model, std::span<const int64_t> ids, int64_t first,
                     LayerStates* states) {
  const at::NoGradGuard no_grad;
  const auto length = static_cast<int64_t>(ids.size());
  const at::Tensor tokens = at::tensor(at::ArrayRef<int64_t>(ids.data(), ids.size()));
  const at::Tensor positions = at::arange(first, first + length, at::kLong);
  const MicroBatch batch = token_batch(tokens.to(model.device), positions.to(model.device));
  return gathered_logits(model, model.whole().forward({}, batch, states)).unsqueeze(1);
}

std::vector<InferenceOutput> outputs_of(const LanguageModel& model, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  std::vector<InferenceOutput> outputs =
      model.whole().inference_outputs(model.whole().forward({}, batch, nullptr));
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
  const at::Tensor embeddings = model.whole().text_embeddings(model.whole().forward({}, batch, nullptr));
  return embeddings.defined() ? embeddings.to(at::kCPU, at::kFloat).contiguous() : embeddings;
}

}  // namespace teratron
