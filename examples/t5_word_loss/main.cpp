// T5 whose loss counts the sentinels between the spans less than the words in them: where the next sentinel
// comes is easy to tell, and teaches little.
//
//   loss = sum of weight * loss of each label / sum of weights; the weight is 1, or sentinel_weight
//
//   t5_word_loss pretrain t5 FLAGS... --vocab-extra-ids 100 --sentinel-weight 0.1
#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/cli/program.h"
#include "teratron/train/t5/t5_step.h"

using teratron::LossTerm;
using teratron::MicroBatch;
using teratron::Registry;
using teratron::StepLoss;

namespace {

class WordLoss : public teratron::T5TrainStep {
 public:
  WordLoss(std::vector<int64_t> sentinels, double weight)
      : sentinels_(std::move(sentinels)), weight_(weight) {}

  std::vector<std::string> metric_names() const override { return {"share of sentinels"}; }

  StepLoss loss(const at::Tensor& losses_SB, const MicroBatch& batch) override {
    at::Tensor is_sentinel_SB = at::zeros_like(batch["labels"], at::kBool);
    for (const int64_t id : sentinels_) is_sentinel_SB.logical_or_(batch["labels"].eq(id));
    const at::Tensor& mask_SB = batch["loss_mask"];
    const at::Tensor weights_SB =
        mask_SB * (1.0 - (1.0 - weight_) * is_sentinel_SB.to(mask_SB.scalar_type()));
    const LossTerm term = teratron::masked_loss(losses_SB, weights_SB);
    const at::Tensor share = (is_sentinel_SB * mask_SB).sum() / mask_SB.sum();
    return {.losses = {term}, .metrics = {share * term.count}};
  }

 private:
  std::vector<int64_t> sentinels_;
  double weight_;
};

std::unique_ptr<WordLoss> word_loss(double weight, const Registry::Context& context) {
  const std::vector<int32_t>& ids = context.tokenizer.special().additional;
  if (ids.empty()) {
    throw teratron::config_error({.what = "the tokenizer has no sentinels",
                                  .where = "--vocab-extra-ids",
                                  .fix = "Add --vocab-extra-ids 100"});
  }
  return std::make_unique<WordLoss>(std::vector<int64_t>(ids.begin(), ids.end()), weight);
}

}  // namespace

int main(int argc, char** argv) {
  double weight = 0.1;
  const Registry registry = {
      .fields = {teratron::custom_field("sentinel_weight", &weight, "Weight of sentinels among the labels",
                                        {.min = 0})},
      .train_step = [&](const Registry::Context& context) { return word_loss(weight, context); }};
  return teratron::main(argc, argv, registry);
}
