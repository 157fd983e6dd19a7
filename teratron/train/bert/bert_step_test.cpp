#include "teratron/train/bert/bert_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/models/bert/bert_classifier.h"
#include "teratron/models/bert/bert_family.h"
#include "teratron/models/bert/data/bert_dataset.h"
#include "teratron/testing/bert_models.h"
#include "teratron/train/classification/classification_step.h"
#include "teratron/train/engine/engine_options.h"

namespace teratron {
namespace {

class HalfOfThePairs : public BertTrainStep {
 public:
  StepLoss loss(const BertScores& scores, const MicroBatch& batch) override {
    StepLoss result = BertTrainStep::loss(scores, batch);
    result.losses.at(1).sum = result.losses[1].sum * 0.5;
    return result;
  }
};

TEST(BertStep, StartsWithTheLossesOfTheModel) {
  const BertConfig config = small_bert_config();
  ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
  Bert bert(config, {parameters, {.layers = config.layers}, {}});
  const MicroBatch batch = bert_batch(config, 1, {0, test_samples});
  const Activations output = bert.forward({}, batch, nullptr);
  const std::vector<LossTerm> expected = bert.losses(output, batch);
  BertTrainStep plain;
  HalfOfThePairs derived;
  const StepLoss same = plain.forward_step(bert, output, batch),
                 half = derived.forward_step(bert, output, batch);
  ASSERT_EQ(expected.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(same.losses.at(i).sum, expected[i].sum));
    EXPECT_TRUE(at::equal(half.losses.at(i).sum, expected[i].sum * (i == 0 ? 1.0 : 0.5)));
  }
}

struct OtherBatches : ModelLosses {};

// Steps with losses of a program read rows as they are, unless they say otherwise.
TEST(BertStep, TakesPackedRowsWithTheLossesOfTheModel) {
  OtherBatches plain;
  HalfOfThePairs derived;
  EXPECT_TRUE(plain.takes_packed_rows());
  EXPECT_TRUE(ClassificationStep(ClassifierTarget::number).takes_packed_rows());
  EXPECT_FALSE(derived.takes_packed_rows());
  const BatchSchema padded = bert_schema({.sequence_length = 8, .predictions = 1}),
                    full = bert_schema({.sequence_length = 8, .predictions = 1, .padding = false});
  EngineOptions options{.model = bert_plan(small_bert_config(), padded), .step = &plain};
  Arguments args;
  EXPECT_FALSE(packs_rows(args, options)) << "auto, on a CPU";
  args.remove_padding = "always";
  EXPECT_TRUE(packs_rows(args, options));
  args.remove_padding = "auto";
  options.device = at::kCUDA;
  EXPECT_TRUE(packs_rows(args, options));
  options.graphs_after = 3;
  args.deterministic_mode = true;
  EXPECT_FALSE(packs_rows(args, options)) << "graphs may take over at any step";
  args.remove_padding = "always";
  EXPECT_TRUE(packs_rows(args, options)) << "then there are no graphs";
  options.step = &derived;
  EXPECT_THROW(packs_rows(args, options), UserError);
  options = {.model = bert_plan(small_bert_config(), full)};
  EXPECT_FALSE(packs_rows(args, options)) << "rows are full";
  options.model.packs_rows = false;
  EXPECT_THROW(packs_rows(args, options), UserError);
  args.remove_padding = "never";
  EXPECT_FALSE(packs_rows(args, options));
}

TEST(BertStep, CountsTheTextsOfTheRightClass) {
  const BertConfig config = small_bert_config();
  ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
  BertClassifier model(config, {.outputs = 3}, {parameters, {.layers = config.layers}, {}});
  const at::Tensor logits_BK = at::tensor({1.0, 2.0, 0.0, 3.0, 1.0, 0.0}, at::kDouble).view({2, 3});
  MicroBatch batch;
  batch.tensors.set("labels", at::tensor({1, 2}, at::kLong).view({2, 1}));
  ClassificationStep step(ClassifierTarget::one_of), number(ClassifierTarget::number);
  const StepLoss result = step.forward_step(model, {{"logits", logits_BK}}, batch);
  ASSERT_EQ(step.metric_names(), std::vector<std::string>{"accuracy"});
  EXPECT_EQ(result.metrics.at(0).item<double>(), 1.0);
  EXPECT_EQ(result.losses.at(0).count.item<double>(), 2.0);
  EXPECT_TRUE(number.metric_names().empty());
}

}  // namespace
}  // namespace teratron
