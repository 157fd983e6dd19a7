// Classification and regression with a BERT: losses, and every layout against one rank.
#include "teratron/models/bert/bert_classifier.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/testing/bert_models.h"
#include "teratron/train/data/row_packing.h"

namespace teratron {
namespace {

constexpr int64_t outputs = 3;

ClassifierOptions classifier(ClassifierTarget target) {
  return {.target = target, .outputs = target == ClassifierTarget::number ? 1 : outputs, .dropout = 0.2};
}

constexpr ClassifierTarget all_targets[] = {ClassifierTarget::number, ClassifierTarget::one_of,
                                            ClassifierTarget::several};

TestModel classifier_model(const BertConfig& config, ClassifierTarget target) {
  const auto batch = [config, target](int64_t step, FlatRange samples) {
    MicroBatch result = bert_batch(config, step, samples);
    const at::Tensor numbers_B3 = result["masked_labels"].remainder(7);
    const at::Tensor labels = target == ClassifierTarget::number ? numbers_B3.slice(1, 0, 1).to(at::kFloat)
                              : target == ClassifierTarget::one_of
                                  ? numbers_B3.slice(1, 0, 1).remainder(outputs)
                                  : numbers_B3.remainder(2).to(at::kFloat);
    result.tensors.set("labels", labels.contiguous());
    return result;
  };
  return {bert_classifier_plan(config, classifier(target), {}), batch};
}

TEST(BertClassifier, MatchesOneRankInEveryLayout) {
  BertConfig dropout = small_bert_config();
  dropout.hidden_dropout = 0.1;
  for (const ClassifierTarget target : all_targets) {
    for (const Layout& layout : {Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true},
                                 Layout{.pp = 2, .microbatches = 4}, Layout{.dp = 4}, every_axis}) {
      SCOPED_TRACE(to_string(layout));
      const TestModel model = classifier_model(dropout, target);
      expect_same(gradients_of(model, layout, at::kDouble), gradients_of(model, {}, at::kDouble), 1e-12);
    }
  }
}

TEST(BertClassifier, TakesPackedRowsInEveryLayout) {
  BertConfig dropout = small_bert_config();
  dropout.hidden_dropout = 0.1;
  const BatchSchema schema = bert_classifier_schema({.sequence_length = 8});
  for (const ClassifierTarget target : all_targets) {
    const TestModel padded = classifier_model(dropout, target);
    const Gradients expected = gradients_of(padded, {}, at::kDouble);
    for (const Layout& layout : {Layout{}, Layout{.tp = 2, .microbatches = 2, .sequence_parallel = true},
                                 Layout{.pp = 2, .microbatches = 4}, every_axis}) {
      SCOPED_TRACE(to_string(layout));
      TestModel packed = padded;
      packed.batch = [&](int64_t step, FlatRange samples) {
        const MicroBatch rows = padded.batch(step, samples);
        return without_padding(rows, schema,
                               {.lengths = bert_row_lengths(rows), .row = 8, .multiple = layout.tp});
      };
      EXPECT_GT(packed.batch(1, {0, test_samples}).padded_length, 0);
      expect_same(gradients_of(packed, layout, at::kDouble), expected, 1e-12);
    }
  }
}

double mean(const LossTerm& term) {
  return (term.sum / term.count).item<double>();
}

TEST(BertClassifier, HasTheLossOfItsTarget) {
  const at::Tensor logits_BK = at::tensor({1.0, -2.0, 0.5, 0.0, 3.0, -1.0}, at::kDouble).view({2, 3});
  const at::Tensor numbers = at::tensor({2.0, -1.0}, at::kFloat).view({2, 1});
  EXPECT_NEAR(mean(classification_loss(logits_BK.slice(1, 0, 1), numbers, ClassifierTarget::number)),
              (1.0 * 1.0 + 1.0 * 1.0) / 2, 1e-12);
  const at::Tensor classes = at::tensor({2, 1}, at::kLong).view({2, 1});
  const double first = std::log(std::exp(1.0) + std::exp(-2.0) + std::exp(0.5)) - 0.5;
  const double second = std::log(1.0 + std::exp(3.0) + std::exp(-1.0)) - 3.0;
  EXPECT_NEAR(mean(classification_loss(logits_BK, classes, ClassifierTarget::one_of)), (first + second) / 2,
              1e-12);
  const at::Tensor several = at::tensor({1.0F, 0.0F, 1.0F, 0.0F, 1.0F, 0.0F}).view({2, 3});
  const at::Tensor p = logits_BK.sigmoid(), y = several.to(at::kDouble);
  EXPECT_NEAR(mean(classification_loss(logits_BK, several, ClassifierTarget::several)),
              -(y * p.log() + (1 - y) * (1 - p).log()).mean().item<double>(), 1e-12);
}

TEST(BertClassifier, HasTheWeightsOfThePretrainedEncoder) {
  const auto names = [](const auto& make) {
    ParameterSet parameters({.seed = 3});
    const BertConfig config = small_bert_config();
    const StageSpec stage{.layers = config.layers};
    const StageContext part{parameters, stage, TensorParallel()};
    make(config, part);
    std::set<std::string> result;
    for (const Parameter& parameter : parameters.all()) result.insert(parameter.name);
    return result;
  };
  std::set<std::string> pretrained =
      names([](const BertConfig& config, const StageContext& part) { Bert(config, part); });
  std::erase_if(pretrained, [](const std::string& name) {
    return name.starts_with("lm_head.") || name.starts_with("output_layer.") ||
           name.starts_with("binary_head.");
  });
  pretrained.insert({"classification_head.weight", "classification_head.bias"});
  EXPECT_EQ(names([](const BertConfig& config, const StageContext& part) {
              BertClassifier(config, classifier(ClassifierTarget::one_of), part);
            }),
            pretrained);
}

}  // namespace
}  // namespace teratron
