// An optimizer rule that a program brings and whose unit is the matrix. In any layout it trains like on one
// rank, and is saved and resharded.
#include "teratron/optim/matrix_rule.h"

#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/testing/nonfinite_step.h"
#include "teratron/train/checkpoint/model_checkpoint.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

// Momentum, divided by its Frobenius norm over the whole matrix.
class NormalisedMomentum : public MatrixRule {
 public:
  std::vector<RuleState> states() const override { return {{"momentum"}}; }

 protected:
  Update update(const Matrix& matrix) const override {
    const at::Tensor momentum = 0.9 * matrix.states[0] + matrix.grad;
    const at::Tensor squares = momentum.square().sum().view({1});
    if (matrix.parts.size > 1) matrix.parts.communicator->all_reduce(squares, ReduceOp::sum).wait();
    return {.direction = momentum / squares.sqrt(), .states = {momentum}};
  }
};

bool is_hidden_matrix(const Parameter& parameter) {
  return parameter.tensor.dim() == 2 && parameter.options.param_group == ParamGroup::standard;
}

EngineOptions matrix_options(const Layout& layout, at::ScalarType dtype) {
  GPTConfig config = llama_config();
  config.layers = 4;
  EngineOptions options = engine_options(config, layout, dtype);
  options.rules = {{std::make_shared<NormalisedMomentum>(), is_hidden_matrix}, {adam_rule()}};
  return options;
}

class MatrixRules : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("teratron_matrix_rule_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Visit {
    Layout layout = {};
    at::ScalarType dtype = at::kDouble;
    std::optional<int64_t> load = {};  // the step after which it was saved
    int64_t end = 0;                   // step
    std::optional<int64_t> save = {};
  };
  // Weights and optimizer state at the end.
  std::map<std::string, at::Tensor> visit(const Visit& visit) const {
    GlobalTensors global;
    run_layout(visit.layout, [&](const Mesh& mesh) {
      TrainEngine engine(matrix_options(visit.layout, visit.dtype), mesh);
      if (visit.load) {
        load_model(engine, {.directory = folder_, .iteration = visit.load});
        engine.optimizer().set_steps(*visit.load);
      }
      for (int64_t step = visit.load.value_or(0); step < visit.end; ++step)
        train_step(engine, visit.layout, {}, step, {.lr = 1e-2, .weight_decay = 0.1}).wait();
      for (const StateTensor& part : weights(engine)) global.add(part);
      for (const StateTensor& part : engine.optimizer().state()) global.add(part);
      if (visit.save) save_model(engine, {.directory = folder_, .iteration = *visit.save});
    });
    return global.tensors();
  }

  fs::path folder_;
};

void expect_close_to_serial(const std::map<std::string, at::Tensor>& actual,
                            const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(at::allclose(actual.at(name), tensor, 1e-7, 1e-9)) << name;
}

const Layout matrix_layouts[] = {
    {.dp = 2},
    {.dp = 2, .sharded = true},
    {.dp = 4, .sharded = true, .overlap_param_gather = true, .average_in_collective = true},
    {.tp = 2},
    {.tp = 2, .dp = 2, .sequence_parallel = true, .sharded = true},
    {.tp = 2, .pp = 2, .dp = 2, .chunks = 2, .microbatches = 2, .sharded = true},
    {.dp = 4, .bucket_size = 1'000'000, .sharded = true}};

TEST_F(MatrixRules, TrainLikeOneRank) {
  const auto serial = visit({.end = 3});
  const std::string weight = "decoder.layers.1.mlp.linear_fc1.weight",
                    norm = "decoder.final_layernorm.weight";
  EXPECT_TRUE(serial.contains("optimizer.momentum." + weight));
  EXPECT_FALSE(serial.contains("optimizer.exp_avg." + weight));
  EXPECT_TRUE(serial.contains("optimizer.exp_avg." + norm));
  for (const Layout& layout : matrix_layouts) {
    SCOPED_TRACE(to_string(layout));
    expect_close_to_serial(visit({.layout = layout, .end = 3}), serial);
  }
}

TEST_F(MatrixRules, ResumeInAnotherLayout) {
  const auto serial = visit({.end = 4});
  const Layout* previous = &matrix_layouts[5];
  for (const Layout& layout : matrix_layouts) {
    SCOPED_TRACE(to_string(*previous) + " -> " + to_string(layout));
    visit({.layout = *previous, .end = 2, .save = 2});
    expect_close_to_serial(visit({.layout = layout, .load = 2, .end = 4}), serial);
    previous = &layout;
  }
}

TEST_F(MatrixRules, AreReshardedBitwise) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto written = visit({.layout = matrix_layouts[4], .dtype = type, .end = 2, .save = 2});
    EXPECT_TRUE(written.contains("optimizer.param.decoder.layers.1.mlp.linear_fc1.weight"));
    const auto read = visit({.layout = matrix_layouts[2], .dtype = type, .load = 2, .end = 2});
    ASSERT_EQ(read.size(), written.size());
    for (const auto& [name, tensor] : written) EXPECT_TRUE(at::equal(read.at(name), tensor)) << name;
  }
}

// Each matrix is stepped by one data-parallel rank, and all are.
TEST_F(MatrixRules, OwnWholeMatrices) {
  std::mutex mutex;
  std::map<std::string, int> owners;
  const Layout layout{.dp = 4, .sharded = true};
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(matrix_options(layout, at::kDouble), mesh);
    const std::lock_guard lock(mutex);
    for (const StateTensor& state : engine.optimizer().state()) {
      if (!state.name.starts_with("optimizer.momentum.")) continue;
      ++owners[state.name];
      const Parameter* parameter =
          engine.parameters().find(state.name.substr(sizeof("optimizer.momentum.") - 1));
      ASSERT_TRUE(parameter);
      EXPECT_EQ(state.local.size(), parameter->tensor.numel()) << state.name;
    }
  });
  EXPECT_EQ(owners.size(), 16U);
  for (const auto& [name, count] : owners) EXPECT_EQ(count, 1) << name;
}

TEST_F(MatrixRules, NonfiniteGradientsChangeNothing) {
  const Layout layout{.tp = 2, .dp = 2, .sharded = true};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    run_layout(layout, [&](const Mesh& mesh) {
      TrainEngine engine(matrix_options(layout, type), mesh);
      expect_nonfinite_step_changes_nothing(engine, layout);
    });
  }
}

}  // namespace
}  // namespace teratron
