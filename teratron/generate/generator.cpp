#include "teratron/generate/generator.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"

namespace teratron {

LanguageModel language_model(const ModelPlan& plan, ParameterSet& parameters, const Group& tensor_parallel) {
  const StageSpec stage{.layers = plan.layers()};
  return {.model = plan.build({parameters, stage, TensorParallel{tensor_parallel}}),
          .layers = plan.layers(),
          .vocabulary = plan.vocabulary,
          .max_positions = plan.max_positions,
          .inference = plan.inference,
          .tensor_parallel = tensor_parallel,
          .device = parameters.options().device};
}

at::Tensor logits_of(const LanguageModel& model, std::span<const int64_t> ids, int64_t first,
                     LayerStates* states) {
  const at::NoGradGuard no_grad;
  const auto length = static_cast<int64_t>(ids.size());
  const at::Tensor tokens = at::tensor(at::ArrayRef<int64_t>(ids.data(), ids.size())).view({length, 1});
  const at::Tensor positions = at::arange(first, first + length, at::kLong).view({length, 1});
  const MicroBatch batch{
      .tensors = {{"tokens", tokens.to(model.device)}, {"position_ids", positions.to(model.device)}},
      .training = false};
  const at::Tensor local_SBV = model.model->logits(model.model->forward({}, batch, states));
  return gather_from(local_SBV, 2, model.tensor_parallel).narrow(2, 0, model.vocabulary);
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

std::vector<int32_t> generate(const LanguageModel& model, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options) {
  const int64_t positions = model.max_positions;
  TERATRON_ASSERT(!prompt.empty());
  if (static_cast<int64_t>(prompt.size()) >= positions) {
    throw config_error(
        {.what = fmt::format("the prompt has {} tokens and the model {} positions", prompt.size(), positions),
         .where = "--prompt",
         .fix = "Shorten the prompt"});
  }
  std::vector<int64_t> ids(prompt.begin(), prompt.end());
  LayerStates states(model.layers);
  size_t seen = 0;
  std::vector<int32_t> text;
  const auto room = std::min(options.max_new_tokens, positions - static_cast<int64_t>(prompt.size()));
  for (int64_t count = 0; count < room; ++count) {
    const at::Tensor logits_SBV =
        logits_of(model, std::span(ids).subspan(seen), static_cast<int64_t>(seen), &states);
    seen = ids.size();
    const uint64_t draw = (options.sequence << 32U) + static_cast<uint64_t>(seen);
    const int64_t id = sample(logits_SBV[-1][0], options.sampling, draw);
    ids.push_back(id);
    text.push_back(static_cast<int32_t>(id));
    if (options.on_token) options.on_token(text.back());
    if (id == options.end_token) break;
  }
  return text;
}

}  // namespace teratron
