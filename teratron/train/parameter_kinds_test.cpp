// Models with frozen parameters, parameters that each data-parallel rank has for itself, and buffers:
// training, checkpoints and checks of replicas.
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/models/gpt/gpt.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/train/checkpoint/model_checkpoint.h"
#include "teratron/train/guards/replica_check.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

constexpr int64_t groups = 2;  // of samples, each with its own scale

bool is_frozen(const std::string& name) {
  return name.starts_with("embedding.position") || name.find("layers.1.mlp.linear_fc1") != std::string::npos;
}

// A GPT whose output is scaled by one vector per group of samples: one per rank if there are two. Then a
// vector is added that all stages hold. Counts the tokens it has seen.
class ScaledGPT : public GPT {
 public:
  ScaledGPT(const GPTConfig& config, const StageContext& part, const Mesh& mesh)
      : GPT(part.parameters, config, part.stage, part.parallel) {
    for (Parameter& parameter : part.parameters.all()) {
      if (is_frozen(parameter.name) && parameter.options.trainable) freeze(parameter);
    }
    shift_ = part.parameters.find("shift");
    if (!shift_) {
      shift_ = &Scope(part.parameters)
                    .parameter("shift", {.shard = Shard::replicated({config.hidden}),
                                         .replicated_over = replica_axes | Axis::pp,
                                         .grad_sum = part.parallel.grad_sum()});
    }
    if (!part.stage.head) return;
    const Group& data_parallel = mesh.data_parallel();
    const Scope scope = (Scope(part.parameters) / "scale").replicated_over(Axis::cp);
    scale_ = &scope.parameter(
        "weight", {.shard = Shard::split({groups, config.hidden}, 0, data_parallel.size, data_parallel.rank),
                   .init = Init::ones(),
                   .grad_sum = part.parallel.grad_sum()});
    seen_ = at::zeros({1}, at::kDouble);
    total_ = at::zeros({1}, at::kLong);
    last_ = at::zeros({1}, at::kFloat);
    part.parameters.register_buffer(
        {.name = "scale.total", .shard = Shard::replicated({1}), .tensor = total_});
    part.parameters.register_buffer({.name = "scale.last",
                                     .shard = Shard::replicated({1}),
                                     .tensor = last_,
                                     .kind = Buffer::Kind::training});
    part.parameters.on_step_end([this](const Mesh& ranks) {
      ranks.replicas().communicator->all_reduce(seen_, ReduceOp::sum).wait();
      total_.add_(seen_.to(at::kLong));
      last_.copy_(seen_);
      seen_.zero_();
    });
  }

  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override {
    Activations output = GPT::forward(input, batch, states);
    if (!scale_) return output;
    const at::Tensor scale = autograd_tensor(*scale_);
    const at::Tensor group_B = batch.sample_ids_B.remainder(test_samples).div(test_samples / groups, "floor");
    const at::Tensor row_B = scale.size(0) == groups ? group_B : at::zeros_like(group_B);
    if (batch.training) seen_.add_(static_cast<double>(batch["labels"].numel()));
    output.set("hidden", output["hidden"] * scale.index_select(0, row_B) + autograd_tensor(*shift_));
    return output;
  }

 private:
  Parameter* shift_ = nullptr;
  Parameter* scale_ = nullptr;
  at::Tensor seen_, total_, last_;
};

GPTConfig four_layers() {
  GPTConfig config = gpt2_config();
  config.layers = 4;
  return config;
}

EngineOptions scaled_options(const Layout& layout, const Mesh& mesh, at::ScalarType dtype) {
  EngineOptions options = engine_options(four_layers(), layout, dtype);
  options.model.build = [&mesh](const StageContext& part) {
    return std::make_unique<ScaledGPT>(four_layers(), part, mesh);
  };
  return options;
}

const Layout parallel_layouts[] = {
    {.dp = 2},
    {.dp = 2, .sharded = true, .average_in_collective = true, .late = true},
    {.tp = 2, .dp = 2, .microbatches = 2, .sharded = true, .overlap_param_gather = true},
    {.tp = 2, .dp = 2, .sequence_parallel = true, .average_in_collective = true},
    {.pp = 2, .dp = 2, .chunks = 2, .microbatches = 2, .sharded = true},
    {.tp = 2, .pp = 2, .dp = 2, .microbatches = 2, .sequence_parallel = true, .sharded = true, .late = true}};

class ParameterKinds : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("teratron_kinds_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Visit {
    Layout layout = {};
    at::ScalarType dtype = at::kDouble;
    std::optional<int64_t> load = {};  // iteration
    int64_t steps = 0;
    std::optional<int64_t> save = {};
  };
  struct Outcome {
    std::vector<StepResult> steps;
    std::map<std::string, at::Tensor> tensors;  // weights, buffers, optimizer state
  };
  Outcome visit(const Visit& visit) const {
    Outcome outcome;
    GlobalTensors global;
    std::mutex mutex;
    run_layout(visit.layout, [&](const Mesh& mesh) {
      TrainEngine engine(scaled_options(visit.layout, mesh, visit.dtype), mesh);
      if (visit.load) load_model(engine, {.directory = folder_, .iteration = visit.load});
      std::vector<StepResult> steps;
      for (int64_t step = 0; step < visit.steps; ++step) {
        steps.push_back(train_step(engine, visit.layout, {}, step, {.lr = 1e-2, .weight_decay = 0.1}).wait());
      }
      for (const StateTensor& part : weights(engine)) global.add(part);
      for (const StateTensor& part : engine.optimizer().state()) global.add(part);
      for (const Buffer& buffer : engine.parameters().buffers()) {
        global.add({buffer.name, buffer.shard, {0, buffer.tensor.numel()}, buffer.tensor});
      }
      EXPECT_NO_THROW(check_replicas(engine.parameters(), mesh));
      if (visit.save) save_model(engine, {.directory = folder_, .iteration = *visit.save});
      const std::lock_guard lock(mutex);
      outcome.steps = steps;
    });
    outcome.tensors = global.tensors();
    return outcome;
  }

  fs::path folder_;
};

TEST_F(ParameterKinds, TrainLikeOneRank) {
  const Outcome initial = visit({}), serial = visit({.steps = 3});
  const GPTConfig config = four_layers();
  const auto key_biases = static_cast<double>(config.layers * config.hidden);
  for (const Layout& layout : parallel_layouts) {
    SCOPED_TRACE(to_string(layout));
    const Outcome parallel = visit({.layout = layout, .steps = 3});
    for (size_t i = 0; i < serial.steps.size(); ++i) {
      const StepResult &a = parallel.steps[i], &e = serial.steps[i];
      EXPECT_NEAR(a.losses.at(0), e.losses.at(0), 1e-10);
      EXPECT_NEAR(a.grad_norm, e.grad_norm, 1e-10);
      EXPECT_NEAR(a.parameter_norm, e.parameter_norm, 1e-10);
      // Gradients of key biases are rounding errors and may be zero.
      EXPECT_NEAR(static_cast<double>(a.num_zeros), static_cast<double>(e.num_zeros), key_biases);
    }
    ASSERT_EQ(parallel.tensors.size(), serial.tensors.size());
    for (const auto& [name, tensor] : serial.tensors) {
      EXPECT_TRUE(at::allclose(parallel.tensors.at(name), tensor, 1e-7, 1e-8)) << name;
    }
  }
  int64_t frozen = 0;
  for (const auto& [name, tensor] : initial.tensors) {
    if (name.starts_with("optimizer.") || name.starts_with("scale.")) continue;
    EXPECT_EQ(at::equal(serial.tensors.at(name), tensor), is_frozen(name)) << name;
    EXPECT_EQ(serial.tensors.contains("optimizer.exp_avg." + name), !is_frozen(name)) << name;
    frozen += is_frozen(name) ? 1 : 0;
  }
  EXPECT_EQ(frozen, 3);
  const at::Tensor scale = serial.tensors.at("scale.weight");
  EXPECT_FALSE(at::allclose(scale[0], scale[1]));
  EXPECT_EQ(serial.tensors.at("scale.total").item<int64_t>(), 3 * 8 * test_samples);
  EXPECT_EQ(serial.tensors.at("scale.last").item<float>(), 8 * test_samples);
}

TEST_F(ParameterKinds, AreReshardedBitwise) {
  int64_t iteration = 0;
  const Layout* previous = &parallel_layouts[2];
  for (const Layout& layout : parallel_layouts) {
    SCOPED_TRACE(to_string(layout));
    const int64_t first = ++iteration, second = ++iteration;
    const Outcome written = visit({.layout = *previous, .dtype = at::kBFloat16, .steps = 2, .save = first});
    const Outcome read = visit({.layout = layout, .dtype = at::kBFloat16, .load = first, .save = second});
    const Outcome alone = visit({.dtype = at::kBFloat16, .load = second});
    for (const auto& [name, tensor] : written.tensors) {
      EXPECT_TRUE(at::equal(read.tensors.at(name), tensor)) << name;
      EXPECT_TRUE(at::equal(alone.tensors.at(name), tensor)) << name;
    }
    previous = &layout;
  }
  const CheckpointInfo info = open_checkpoint(folder_ / "iter_0000001");
  EXPECT_EQ(info.tensors.at("scale.total").dtype, Dtype::i64);
  EXPECT_TRUE(info.tensors.contains("optimizer.scale.last"));
  EXPECT_TRUE(info.tensors.contains("decoder.layers.1.mlp.linear_fc1.weight"));
  EXPECT_FALSE(info.tensors.contains("optimizer.param.decoder.layers.1.mlp.linear_fc1.weight"));
}

TEST_F(ParameterKinds, NamesABufferThatDiffers) {
  run_layout({.dp = 2}, [&](const Mesh& mesh) {
    TrainEngine engine(scaled_options({.dp = 2}, mesh, at::kFloat), mesh);
    if (mesh.rank() == 1) engine.parameters().buffers()[0].tensor.add_(1);
    try {
      check_replicas(engine.parameters(), mesh);
      ADD_FAILURE() << "no difference found";
    } catch (const Fault& fault) {
      EXPECT_NE(std::string(fault.what()).find("scale.total differs between ranks 0 and 1"),
                std::string::npos)
          << fault.what();
    }
  });
}

// Whatever else is frozen, a parameter gets the same gradient.
void expect_same_gradient_alone(GPTConfig config) {
  const auto gradients_of_trained = [&](const std::string& only) {
    ParameterSet set({.dtype = at::kDouble, .seed = 3});
    GPT model(set, config, {.layers = config.layers}, {});
    for (Parameter& parameter : set.all()) {
      if (!only.empty() && parameter.name != only) freeze(parameter);
    }
    ParamAndGradBuffers buffers(set, Mesh(), {});
    buffers.zero_grad();
    const MicroBatch batch = test_batch(config, {}, false);
    model.token_losses(model.forward({}, batch, nullptr), batch).mean().backward();
    buffers.finish_grad_sync();
    std::map<std::string, at::Tensor> gradients;
    for (const Parameter& parameter : set.all()) {
      EXPECT_EQ(parameter.main_grad.defined(), parameter.options.trainable);
      if (!parameter.options.trainable) continue;
      EXPECT_EQ(parameter.pending_grads, 0) << parameter.name;
      gradients[parameter.name] = parameter.main_grad;
    }
    return gradients;
  };
  for (const auto& [name, gradient] : gradients_of_trained("")) {
    EXPECT_TRUE(at::equal(gradients_of_trained(name).at(name), gradient)) << name;
  }
}

TEST(FrozenParameters, DoNotChangeOtherGradients) {
  for (TestVariant variant : family_variants()) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(variant.name + (recompute ? ", recomputed" : ""));
      if (recompute) variant.config.recompute = {.granularity = RecomputeConfig::Granularity::layers};
      expect_same_gradient_alone(variant.config);
    }
  }
}

TEST(FrozenParameters, LeaveABiasTrainable) {
  ParameterSet set({.seed = 3});
  ColumnLinear linear(Scope(set) / "linear", {.in = 4, .out = 4}, {});
  freeze(*set.find("linear.weight"));
  apply_bias_grad(linear.forward(at::ones({2, 3, 4}))).sum().backward();
  EXPECT_TRUE(at::equal(linear.bias()->main_grad, at::full({4}, 6.0)));
}

TEST(FrozenParameters, AreThoseOfAScope) {
  ParameterSet set({.seed = 3});
  const Scope root(set), encoder = (root / "encoder").frozen();
  const ColumnLinear frozen(encoder / "linear", {.in = 4, .out = 4}, {});
  const ColumnLinear expert((root / "expert").replicated_over(Axis::edp), {.in = 4, .out = 4}, {});
  EXPECT_FALSE(set.find("encoder.linear.weight")->tensor.requires_grad());
  EXPECT_FALSE(set.find("encoder.linear.bias")->options.trainable);
  EXPECT_TRUE(set.find("expert.weight")->tensor.requires_grad());
  EXPECT_EQ(set.find("expert.weight")->options.replicated_over, AxisSet(Axis::edp));
  EXPECT_EQ(set.find("encoder.linear.weight")->options.replicated_over, replica_axes);
}

}  // namespace
}  // namespace teratron
