// A checkpoint has no layout: what any layout wrote, any other reads bit by bit, optimizer state included.
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/base/log.h"
#include "teratron/train/layouts_for_test.h"
#include "teratron/train/model_checkpoint.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

class CheckpointLayouts : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("teratron_layouts_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Visit {
    Layout layout;
    std::optional<int64_t> load = {};  // iteration
    int64_t steps = 0;                 // to train after loading
    std::optional<int64_t> save = {};  // iteration
  };
  // What the layout holds at the end, as global tensors.
  std::map<std::string, at::Tensor> visit(const GPTConfig& config, at::ScalarType dtype,
                                          const Visit& visit) const {
    GlobalTensors global;
    run_layout(visit.layout, [&](const Mesh& mesh) {
      Trainer trainer(trainer_options(config, visit.layout, dtype), mesh);
      if (visit.load) {
        const auto info = load_model(trainer, {.directory = folder_, .iteration = visit.load});
        EXPECT_TRUE(info.has_value());
      }
      for (int64_t step = 0; step < visit.steps; ++step) {
        train_step(trainer, visit.layout, {}, step, {.lr = 1e-2, .weight_decay = 0.1});
      }
      for (const StateTensor& part : weights(trainer)) global.add(part);
      for (const StateTensor& part : trainer.optimizer().state()) global.add(part);
      if (visit.save) save_model(trainer, {.directory = folder_, .iteration = *visit.save});
    });
    return global.tensors();
  }

  fs::path folder_;
};

void expect_equal(const std::map<std::string, at::Tensor>& actual,
                  const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
}

TEST_F(CheckpointLayouts, AreReadByEachOtherBitByBit) {
  const uint32_t seed = std::random_device()();
  print("checkpoint layouts: seed {}", seed);
  std::mt19937 random(seed);
  for (int64_t round = 0; round < 6; ++round) {
    const RandomCase c = random_case(random, 8);
    const Layout other = random_layout(c.config, random, 8);
    SCOPED_TRACE(fmt::format("{} -> {}", to_string(c.layout), to_string(other)));
    const at::ScalarType dtype = round % 2 == 0 ? at::kFloat : at::kBFloat16;
    const int64_t first = 10 * (round + 1);
    const auto written = visit(c.config, dtype, {.layout = c.layout, .steps = 2, .save = first});
    const auto read = visit(c.config, dtype, {.layout = other, .load = first, .save = first + 1});
    const auto alone = visit(c.config, dtype, {.layout = {}, .load = first + 1});
    expect_equal(read, written);
    expect_equal(alone, written);
  }
}

}  // namespace
}  // namespace teratron
