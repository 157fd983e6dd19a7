#include "teratron/models/gpt/gpt_classifier.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/models/bert/bert_heads.h"
#include "teratron/models/classifier/labelled_family.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/gpt/gpt_operators.h"

namespace teratron {

namespace {

GPTConfig without_logits(GPTConfig config) {
  config.output_layer = false;
  return config;
}

}  // namespace

GPTClassifier::GPTClassifier(const GPTConfig& config, const ClassifierOptions& options,
                             const StageContext& part)
    : Model(part.stage),
      options_(options),
      parallel_(part.parallel),
      decoder_(part.parameters, stage_config(without_logits(config), part), part.stage, part.parallel,
               part.mesh) {
  if (!part.stage.head) return;
  // Every tensor-parallel rank computes the head on the same rows, so that gradients agree without a sum.
  head_ = &(Scope(part.parameters) / "classification_head")
               .parameter("weight", {.shard = Shard::replicated({options.outputs, config.hidden}),
                                     .init = weight_init(config)});
}

Activations GPTClassifier::forward(const Activations& input, const MicroBatch& batch, LayerStates* states) {
  const Activations output = decoder_.forward(input, batch, states);
  if (!head_) return output;
  const at::Tensor last_1B = batch["last_token"].view({1, -1});
  const at::Tensor x_1BH = select_positions(output["hidden"], last_1B, parallel_);
  const at::Tensor weight = autograd_tensor(*head_);
  return {{"logits", at::linear(x_1BH[0].to(weight.scalar_type()), weight)}};
}

void GPTClassifier::set_activation_hook(const ActivationHook& hook) {
  Model::set_activation_hook(hook);
  decoder_.set_activation_hook(hook);
}

namespace {

// Padding follows the tokens, and no token attends to what follows.
Inference classifier_inference(int64_t vocabulary) {
  Inference inference = token_inference(vocabulary);
  inference.of_texts = true;
  inference.inputs.push_back({.name = "padding_mask", .limit = 2, .fill = 1});
  inference.batch = [tokens = inference.batch](const NamedTensors& inputs_BS, const std::string& where) {
    const at::Tensor mask_BS = inputs_BS["padding_mask"], lengths_B = mask_BS.sum(1);
    const at::Tensor expected_BS =
        at::arange(mask_BS.size(1), mask_BS.options()).unsqueeze(0).lt(lengths_B.unsqueeze(1));
    if (lengths_B.eq(0).any().item<bool>() || !expected_BS.to(at::kLong).equal(mask_BS)) {
      throw data_error({.what = "a row has padding before or between tokens, or no tokens",
                        .where = fmt::format("{}:padding_mask", where),
                        .fix = "Write 1 for the tokens of each row, then 0 for its padding"});
    }
    MicroBatch batch = tokens(inputs_BS, where);
    batch.tensors.set("last_token", lengths_B.sub(1).unsqueeze(1));
    return batch;
  };
  return inference;
}

}  // namespace

BatchSchema gpt_classifier_schema(const ClassifierSchemaOptions& options) {
  using Kind = Column::Kind;
  using Stages = Column::Stages;
  const std::vector<int64_t> row = {options.sequence_length};
  return {{.name = "tokens", .shape = row, .stages = Stages::first},
          {.name = "sequence_index", .shape = row, .kind = Kind::index},
          {.name = "last_token", .shape = {1}, .kind = Kind::sample, .stages = Stages::last},
          labels_column(options.classifier)};
}

ModelPlan gpt_classifier_plan(const GPTConfig& config, const ClassifierOptions& options,
                              const BatchSchema& batch) {
  const auto residual = config.fp32_residual ? std::optional(at::kFloat) : std::nullopt;
  return {.towers = {{"decoder", config.layers}},
          .batch = batch,
          .channels = {{.name = "hidden",
                        .shape = sequence_shape("sequence_index", config.hidden),
                        .dtype = residual}},
          .losses = {"loss"},
          .vocabulary = config.vocabulary,
          .padded_vocabulary = config.padded_vocabulary,
          .max_positions = config.max_positions,
          .generates = false,
          .build =
              [config, options](const StageContext& part) {
                return std::make_unique<GPTClassifier>(config, options, part);
              },
          .inference = classifier_inference(config.vocabulary),
          .operators = gpt_operators(config),
          .summary = fmt::format("GPT classifier: {} outputs, {} layers, hidden {}, {} heads",
                                 options.outputs, config.layers, config.hidden, config.heads)};
}

Family gpt_classifier_family() {
  const auto plan = [](const Arguments& args, int64_t vocabulary) {
    const ClassifierOptions head = classifier_options(args);
    return gpt_classifier_plan(
        gpt_config(args, vocabulary), head,
        gpt_classifier_schema({.sequence_length = args.seq_length.value_or(0), .classifier = head}));
  };
  return on_labelled_texts({.name = "gpt_classifier",
                            .summary = "a classification head on a GPT",
                            .check = gpt_family().check,
                            .plan = plan,
                            .finetunes = {.family = "gpt",
                                          .starts_anew = {"classification_head."},
                                          .left_out = {"output_layer."}}},
                           LabelledForm::gpt);
}

}  // namespace teratron
