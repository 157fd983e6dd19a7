#include "teratron/models/bert/bert_classifier.h"

#include <ATen/ATen.h>

#include "teratron/models/bert/bert_family.h"
#include "teratron/models/bert/bert_operators.h"
#include "teratron/models/classifier/labelled_family.h"
#include "teratron/models/transformer/select_positions.h"
#include "teratron/nn/dropout.h"

namespace teratron {

namespace {

// After those of the encoder, which is the only stack of layers.
constexpr uint64_t pooled_dropout_site = uint64_t{1} << 32U;

std::unique_ptr<Bert> encoder_of(BertConfig config, const StageContext& part) {
  config.pretraining_heads = false;
  return std::make_unique<Bert>(config, part);
}

}  // namespace

BertClassifier::BertClassifier(const BertConfig& config, const ClassifierOptions& options,
                               const StageContext& part)
    : Classifier(encoder_of(config, part), options),
      parallel_(part.parallel),
      dropout_seed_(config.dropout_seed),
      dropout_site_(config.first_dropout_site + pooled_dropout_site) {
  if (!part.stage.head) return;
  const Scope root(part.parameters),
      head = root / (options.choices > 1 ? "multichoice_head" : "classification_head");
  const Init init = weight_init(config);
  // Every tensor-parallel rank computes the head on the same rows, so that gradients agree without a sum.
  head_.emplace(Head{
      ColumnLinear(root / "pooler" / "dense", {.in = config.hidden, .out = config.hidden, .init = init},
                   TensorParallel()),
      head.parameter("weight", {.shard = Shard::replicated({options.outputs, config.hidden}), .init = init}),
      head.parameter("bias", {.shard = Shard::replicated({options.outputs}),
                              .param_group = ParamGroup::no_weight_decay})});
}

at::Tensor BertClassifier::logits_BK(const at::Tensor& hidden_SBH, const MicroBatch& batch) {
  const PackedRows packed = packed_rows(batch);
  const int64_t samples = packed.defined() ? packed.starts_B.size(0) : hidden_SBH.size(1);
  const at::Tensor first_1B =
      at::zeros({1, samples}, hidden_SBH.options().dtype(at::kLong).requires_grad(false));
  const at::Tensor x_1BH = select_positions(hidden_SBH, first_1B, parallel_, {.packed = packed});
  at::Tensor pooled_1BH = apply_bias_grad(head_->pooler.forward(x_1BH)).tanh();
  if (batch.training && options().dropout > 0.0) {
    const DropoutKey key{dropout_seed_, dropout_site_, batch.sample_ids_B};
    pooled_1BH = bias_dropout_add(
        pooled_1BH, nullptr, at::Tensor(),
        {.rate = options().dropout, .key = key, .rows = {first_1B.select(1, 0), /*total=*/1}});
  }
  const at::Tensor scores =
      at::linear(pooled_1BH[0], autograd_tensor(head_->weight), autograd_tensor(head_->bias));
  return options().choices > 1 ? scores.view({-1, options().choices}) : scores;
}

BatchSchema bert_classifier_schema(const ClassifierSchemaOptions& options) {
  const std::vector<int64_t> row = {options.sequence_length};
  return classifier_schema(
      options,
      {{.name = "types", .shape = row, .stages = Column::Stages::first},
       {.name = "segment_start", .type = ColumnType::i32, .shape = row, .kind = Column::Kind::segments}});
}

ModelPlan bert_classifier_plan(const BertConfig& config, const ClassifierOptions& options,
                               const BatchSchema& batch) {
  ModelPlan plan = classifier_plan(bert_plan(config, batch), "BERT", config, options);
  plan.build = [config, options](const StageContext& part) {
    return std::make_unique<BertClassifier>(config, options, part);
  };
  plan.operators = bert_classifier_operators(config, options.outputs, batch);
  return plan;
}

Family bert_classifier_family() {
  const auto plan = [](const Arguments& args, int64_t vocabulary) {
    const ClassifierOptions head = classifier_options(args);
    return bert_classifier_plan(
        bert_config(args, vocabulary), head,
        bert_classifier_schema({.sequence_length = args.seq_length.value_or(0), .classifier = head}));
  };
  return on_labelled_texts(
      {.name = "bert_classifier",
       .summary = "a classification head on a BERT",
       .settings = {.tokenizer_type = "BertWordPieceLowerCase"},
       .check = bert_family().check,
       .plan = plan,
       .finetunes = {.family = "bert",
                     .starts_anew = {"classification_head.", "multichoice_head.", "pooler."},
                     .left_out = {"lm_head.", "output_layer.", "binary_head."}}},
      LabelledForm::bert);
}

}  // namespace teratron
