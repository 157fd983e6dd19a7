#include "teratron/train/bert/bert_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/testing/bert_models.h"

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

TEST(BertStep, CountsTheTextsOfTheRightClass) {
  const BertConfig config = small_bert_config();
  ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
  BertClassifier model(config, {.outputs = 3}, {parameters, {.layers = config.layers}, {}});
  const at::Tensor logits_BK = at::tensor({1.0, 2.0, 0.0, 3.0, 1.0, 0.0}, at::kDouble).view({2, 3});
  MicroBatch batch;
  batch.tensors.set("labels", at::tensor({1, 2}, at::kLong).view({2, 1}));
  BertClassificationStep step(BertTarget::one_of), number(BertTarget::number);
  const StepLoss result = step.forward_step(model, {{"logits", logits_BK}}, batch);
  ASSERT_EQ(step.metric_names(), std::vector<std::string>{"accuracy"});
  EXPECT_EQ(result.metrics.at(0).item<double>(), 1.0);
  EXPECT_EQ(result.losses.at(0).count.item<double>(), 2.0);
  EXPECT_TRUE(number.metric_names().empty());
}

}  // namespace
}  // namespace teratron
