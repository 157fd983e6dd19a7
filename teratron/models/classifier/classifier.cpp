#include "teratron/models/classifier/classifier.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "teratron/settings/arguments.h"

namespace teratron {

namespace {

constexpr int64_t no_label = -1;

}  // namespace

ClassifierOptions classifier_options(const Arguments& args) {
  const std::string task = args.task.value_or("classification");
  ClassifierOptions options{.outputs = args.num_classes, .dropout = args.hidden_dropout};
  if (task == "regression") {
    options.target = ClassifierTarget::number;
    options.outputs = 1;
  }
  if (task == "RACE") options.outputs = 1, options.choices = 4;
  if (task == "MNLI") options.outputs = 3;
  if (task == "QQP") options.outputs = 2;
  return options;
}

at::Tensor class_labels(const at::Tensor& labels, int64_t samples) {
  return labels.slice(0, 0, labels.size(0), labels.size(0) / samples).squeeze(1);
}

LossTerm classification_loss(const at::Tensor& logits_BK, const at::Tensor& labels, ClassifierTarget target) {
  const at::Tensor scores_BK = logits_BK.scalar_type() == at::kDouble ? logits_BK : logits_BK.to(at::kFloat);
  const auto samples = static_cast<double>(scores_BK.size(0));
  const at::Tensor count = at::full({}, samples, scores_BK.options().requires_grad(false));
  switch (target) {
    case ClassifierTarget::number:
      return {.sum = (scores_BK - labels.to(scores_BK.scalar_type())).square().sum(), .count = count};
    case ClassifierTarget::one_of: {
      const at::Tensor classes_B = class_labels(labels, scores_BK.size(0));
      return {.sum = at::cross_entropy_loss(scores_BK, classes_B, {}, at::Reduction::Sum, no_label),
              .count = classes_B.ge(0).sum().clamp_min(1).to(scores_BK.scalar_type())};
    }
    case ClassifierTarget::several:
      break;
  }
  const at::Tensor mean = at::binary_cross_entropy_with_logits(scores_BK, labels.to(scores_BK.scalar_type()));
  return {.sum = mean * samples, .count = count};
}

BatchSchema classifier_schema(const ClassifierSchemaOptions& options, const BatchSchema& columns) {
  const ClassifierOptions& classifier = options.classifier;
  const bool one_of = classifier.target == ClassifierTarget::one_of;
  const std::vector<int64_t> row = {options.sequence_length};
  BatchSchema schema = {{.name = "tokens", .shape = row, .stages = Column::Stages::first},
                        {.name = "sequence_index", .shape = row, .kind = Column::Kind::index}};
  schema.insert(schema.end(), columns.begin(), columns.end());
  schema.push_back({.name = "labels",
                    .type = one_of ? ColumnType::i64 : ColumnType::f32,
                    .shape = {one_of ? 1 : classifier.outputs},
                    .kind = Column::Kind::sample,
                    .stages = Column::Stages::last});
  return schema;
}

Activations Classifier::forward(const Activations& input, const MicroBatch& batch, LayerStates* states) {
  const Activations output = body_->forward(input, batch, states);
  if (!stage().head) return output;
  return {{"logits", logits_BK(output["hidden"], batch)}};
}

void Classifier::set_activation_hook(const ActivationHook& hook) {
  Model::set_activation_hook(hook);
  body_->set_activation_hook(hook);
}

ModelPlan classifier_plan(ModelPlan model, std::string_view name, const LanguageModelConfig& config,
                          const ClassifierOptions& options) {
  model.losses = {"loss"};
  model.layer_sums = {};
  model.inference.of_texts = true;
  model.summary = fmt::format("{} classifier: {} outputs, {} layers, hidden {}, {} heads", name,
                              options.outputs, config.layers, config.hidden, config.heads);
  return model;
}

}  // namespace teratron
