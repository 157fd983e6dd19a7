#include "teratron/models/gpt/gpt_classifier.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/models/classifier/labelled_family.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/transformer/select_positions.h"

namespace teratron {

namespace {

std::unique_ptr<GPT> decoder_of(GPTConfig config, const StageContext& part) {
  config.output_layer = false;
  return std::make_unique<GPT>(part.parameters, stage_config(config, part), part.stage, part.parallel,
                               part.mesh);
}

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

GPTClassifier::GPTClassifier(const GPTConfig& config, const ClassifierOptions& options,
                             const StageContext& part)
    : Classifier(decoder_of(config, part), options), parallel_(part.parallel) {
  if (!part.stage.head) return;
  // Every tensor-parallel rank computes the head on the same rows, so that gradients agree without a sum.
  head_ = &(Scope(part.parameters) / "classification_head")
               .parameter("weight", {.shard = Shard::replicated({options.outputs, config.hidden}),
                                     .init = weight_init(config)});
}

at::Tensor GPTClassifier::logits_BK(const at::Tensor& hidden_SBH, const MicroBatch& batch) {
  const at::Tensor x_1BH = select_positions(hidden_SBH, batch["last_token"].view({1, -1}), parallel_);
  const at::Tensor weight = autograd_tensor(*head_);
  return at::linear(x_1BH[0].to(weight.scalar_type()), weight);
}

BatchSchema gpt_classifier_schema(const ClassifierSchemaOptions& options) {
  return classifier_schema(
      options,
      {{.name = "last_token", .shape = {1}, .kind = Column::Kind::sample, .stages = Column::Stages::last}});
}

ModelPlan gpt_classifier_plan(const GPTConfig& config, const ClassifierOptions& options,
                              const BatchSchema& batch) {
  ModelPlan plan = classifier_plan(gpt_plan(config, batch), "GPT", config, options);
  plan.build = [config, options](const StageContext& part) {
    return std::make_unique<GPTClassifier>(config, options, part);
  };
  plan.inference = classifier_inference(config.vocabulary);
  return plan;
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
