#include "teratron/train/t5/t5_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/models/t5/t5.h"
#include "teratron/testing/t5_models.h"

namespace teratron {
namespace {

class FirstTokens : public T5TrainStep {
 public:
  StepLoss loss(const at::Tensor& losses_SB, const MicroBatch& batch) override {
    return {.losses = {masked_loss(losses_SB, batch["loss_mask"] * batch["decoder_index"].lt(2))}};
  }
};

TEST(T5Step, StartsWithTheLossOfTheModel) {
  const T5Config config = published_t5_config();
  ParameterSet parameters({.dtype = at::kDouble, .seed = 3});
  T5 t5(config, {parameters, {.layers = config.encoder.layers + config.decoder.layers}, {}});
  const MicroBatch batch = t5_batch(config, 1, {0, test_samples});
  const Activations output = t5.forward({}, batch, nullptr);
  const LossTerm expected = t5.losses(output, batch).at(0);
  T5TrainStep plain;
  FirstTokens derived;
  const LossTerm same = plain.forward_step(t5, output, batch).losses.at(0),
                 first = derived.forward_step(t5, output, batch).losses.at(0);
  EXPECT_TRUE(at::equal(same.sum, expected.sum) && at::equal(same.count, expected.count));
  EXPECT_EQ(first.count.item<double>(), 2.0 * test_samples);
  const at::Tensor losses_SB = t5.token_losses(output, batch);
  EXPECT_TRUE(at::allclose(first.sum, losses_SB.narrow(0, 0, 2).sum(), 1e-12));
}

}  // namespace
}  // namespace teratron
