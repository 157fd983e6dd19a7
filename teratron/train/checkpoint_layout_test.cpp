// A checkpoint is independent of the layout: any layout reads what another wrote, bitwise, with optimizer
// state.
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/train/checkpoint/model_checkpoint.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

void expect_equal(const std::map<std::string, at::Tensor>& actual,
                  const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
}

class CheckpointReshard : public testing::Test {
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
  // Returns the global tensors at the end.
  std::map<std::string, at::Tensor> visit(const GPTConfig& config, at::ScalarType dtype,
                                          const Visit& visit) const {
    GlobalTensors global;
    run_layout(visit.layout, [&](const Mesh& mesh) {
      TrainEngine engine(engine_options(config, visit.layout, dtype), mesh);
      if (visit.load) {
        const auto info = load_model(engine, {.directory = folder_, .iteration = visit.load});
        EXPECT_TRUE(info.has_value());
      }
      for (int64_t step = 0; step < visit.steps; ++step) {
        train_step(engine, visit.layout, {}, step, {.lr = 1e-2, .weight_decay = 0.1});
      }
      for (const StateTensor& part : weights(engine)) global.add(part);
      for (const StateTensor& part : engine.optimizer().state()) global.add(part);
      if (visit.save) save_model(engine, {.directory = folder_, .iteration = *visit.save});
    });
    return global.tensors();
  }

  // Trained and saved by one layout, loaded by another and by one rank.
  void expect_read(const GPTConfig& config, at::ScalarType dtype, const Layout& writer,
                   const Layout& reader) {
    SCOPED_TRACE(fmt::format("{} -> {}", to_string(writer), to_string(reader)));
    const int64_t first = ++iteration_;
    const auto written = visit(config, dtype, {.layout = writer, .steps = 2, .save = first});
    const int64_t second = ++iteration_;
    const auto read = visit(config, dtype, {.layout = reader, .load = first, .save = second});
    const auto alone = visit(config, dtype, {.layout = {}, .load = second});
    expect_equal(read, written);
    expect_equal(alone, written);
  }

  fs::path folder_;
  int64_t iteration_ = 0;
};

TEST_F(CheckpointReshard, PipelineAndShardedOptimizerToPlainAndBack) {
  const Layout interleaved{.pp = 2, .dp = 2, .chunks = 2, .microbatches = 2, .sharded = true};
  const Layout plain{.tp = 2, .dp = 2};
  for (GPTConfig config : {gpt2_config(), llama_config()}) {
    config.layers = 4;
    expect_read(config, at::kBFloat16, interleaved, plain);
    expect_read(config, at::kBFloat16, plain, interleaved);
  }
}

TEST_F(CheckpointReshard, RandomLayoutsAreBitwiseEqual) {
  RandomCases cases({.share = 0.2, .minimum = 4});
  while (std::optional<std::mt19937> random = cases.next()) {
    SCOPED_TRACE(fmt::format("seed {}", cases.seed()));
    const RandomCase c = random_case(*random, 8);
    const Layout other = random_layout(c.config, *random, 8);
    expect_read(c.config, cases.seed() % 2 == 0 ? at::kFloat : at::kBFloat16, c.layout, other);
  }
}

}  // namespace
}  // namespace teratron
