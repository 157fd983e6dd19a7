// What a training step with infinite losses leaves behind: nothing.
#pragma once

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/testing/layouts.h"

namespace teratron {

/// Trains a step, then one whose losses are infinite: this must change no weight and no optimizer state.
inline void expect_nonfinite_step_changes_nothing(TrainEngine& engine, const Layout& layout) {
  train_step(engine, layout, {}, 0, {.lr = 1e-2});
  const auto copies = [&] {
    std::vector<at::Tensor> all;
    for (const StateTensor& part : weights(engine)) all.push_back(part.values.clone());
    for (const StateTensor& part : engine.optimizer().state()) all.push_back(part.read().clone());
    return all;
  };
  const std::vector<at::Tensor> before = copies();
  const int64_t count = test_samples / layout.dp / layout.microbatches;
  const auto infinite = [&](int64_t) {
    const MicroBatch batch = test_batch({}, 37, 1, {0, count});
    batch["loss_mask"].fill_(std::numeric_limits<float>::infinity());
    return batch;
  };
  const StepResult result =
      engine.train_step(infinite, {.microbatches = layout.microbatches, .hyper = {.lr = 1e-2}}).wait();
  EXPECT_TRUE(result.nonfinite);
  const std::vector<at::Tensor> after = copies();
  for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << i;
  EXPECT_EQ(engine.optimizer().steps(), 1);
}

}  // namespace teratron
