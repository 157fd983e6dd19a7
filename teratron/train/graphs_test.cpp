// Steps with CUDA graphs are bitwise equal to eager steps: losses, gradients and weights. On a CPU nothing is
// captured, but data and scalars take the same path (device/device_graph.h).
#include "teratron/models/gpt/gpt.h"
#include "teratron/testing/graph_runs.h"
#include "teratron/testing/train_run.h"

namespace teratron {
namespace {

/// Varies everything that may change between micro-batches and steps.
std::vector<std::pair<std::string, GraphCase>> cases(at::Device device) {
  const GPTConfig gpt2 = gpt2_config(graph_sizes), llama = llama_config(graph_sizes);
  GPTConfig dropout = gpt2, recomputed = gpt2, in_fp8 = gpt2;
  in_fp8.padded_vocabulary = 64;
  in_fp8.fp8_output_layer = true;
  dropout.hidden_dropout = dropout.attention_dropout = 0.1;
  recomputed = dropout;
  recomputed.recompute = {.granularity = RecomputeConfig::Granularity::layers};
  recomputed.loss_chunks = 2;
  const Fp8Options tensorwise{.recipe = Fp8Options::Recipe::tensorwise};
  std::vector<std::pair<std::string, GraphCase>> all = {
      {"gpt2 with dropout", {.config = dropout}},
      {"gpt2 with dropout in bf16", {.config = dropout, .dtype = at::kBFloat16}},
      {"llama", {.config = llama}},
      {"llama in bf16", {.config = llama, .dtype = at::kBFloat16}},
      {"recomputation", {.config = recomputed, .dtype = at::kBFloat16}},
      {"documents", {.config = llama, .documents = true}},
      {"documents in some micro-batches",
       {.config = dropout, .steps = std::vector<int64_t>(12, 3), .documents = true, .in_every_batch = false}},
      {"fp8 with documents in some micro-batches",
       {.config = llama,
        .dtype = at::kBFloat16,
        .fp8 = Fp8Options{.history = 3},
        .steps = std::vector<int64_t>(12, 3),
        .documents = true,
        .in_every_batch = false}},
      {"one micro-batch", {.config = dropout, .steps = {1, 1, 1, 1, 1}}},
      {"more and more", {.config = dropout, .steps = {1, 1, 1, 2, 4, 4}}},
      {"dynamic loss scale",
       {.config = dropout, .dtype = at::kHalf, .scales = {1024, 512, 512, 1024, 256, 64}}},
      {"fp8", {.config = llama, .dtype = at::kBFloat16, .fp8 = Fp8Options{}}},
      {"fp8 with one micro-batch",
       {.config = gpt2, .dtype = at::kBFloat16, .fp8 = Fp8Options{.history = 3}, .steps = {1, 1, 1, 1, 1}}},
      {"fp8 with more and more",
       {.config = gpt2, .dtype = at::kBFloat16, .fp8 = Fp8Options{}, .steps = {1, 1, 1, 2, 4, 4}}},
      {"fp8 with the output layer", {.config = in_fp8, .dtype = at::kBFloat16, .fp8 = Fp8Options{}}},
      {"fp8 by itself", {.config = gpt2, .dtype = at::kBFloat16, .fp8 = tensorwise}}};
  for (auto& [name, one] : all) one.device = device;
  return all;
}

TEST(Graphs, BitwiseEqualToEager) {
  for (const auto& [name, one] : cases(at::kCPU)) {
    SCOPED_TRACE(name);
    expect_the_same(one);
  }
}

TEST(Graphs, BitwiseEqualWithDataParallel) {
  for (const bool sharded : {false, true}) {
    GraphCase c{.steps = {1, 2, 2, 2}};
    c.config.hidden_dropout = 0.1;
    c.layout = {.dp = 2, .sharded = sharded, .overlap_param_gather = sharded};
    expect_the_same(c);
  }
}

// Eager steps, then graphs, and on a CPU, where they save no time, possibly eager steps again.
const std::vector<int64_t> steps_that_decide(12, 2);

TEST(Graphs, BitwiseEqualWhenTheyChooseThemselves) {
  GraphCase c{.steps = steps_that_decide};
  c.config.hidden_dropout = 0.1;
  const GraphUse by_themselves{.after = graph_warm_up, .where_host_bound = true};
  expect_the_same(c, by_themselves);
  EXPECT_NE(run_graphs(c, by_themselves).graphs.find("CUDA graphs"), std::string::npos);
  c.fp8 = Fp8Options{.history = 3};
  c.dtype = at::kBFloat16;
  expect_the_same(c, by_themselves);
  c = {.steps = steps_that_decide, .layout = {.dp = 2, .sharded = true, .overlap_param_gather = true}};
  expect_the_same(c, by_themselves);
}

MicroBatch first_sample_of(const MicroBatch& batch) {
  MicroBatch first = batch;
  for (const auto& [name, tensor] : batch.tensors)
    first.tensors.set(name, tensor.narrow(1, 0, 1).contiguous());
  first.sample_ids_B = batch.sample_ids_B.narrow(0, 0, 1);
  return first;
}

TEST(Graphs, CaptureNewShapesAFewTimes) {
  const MicroBatch two = graph_batch({}, 0, 0), one = first_sample_of(two);
  const auto losses = [&](int64_t graphs_after) {
    EngineOptions options = engine_options(gpt2_config(graph_sizes), {}, at::kFloat);
    options.graphs_after = graphs_after;
    TrainEngine engine(options, Mesh());
    std::vector<double> all;
    for (const MicroBatch& batch : {one, two, two, one, one, two}) {
      const StepResult step =
          engine.train_step([&](int64_t) { return batch; }, {.hyper = {.lr = 1e-2}}).wait();
      all.push_back(step.loss);
    }
    return all;
  };
  EXPECT_EQ(losses(1), losses(0));
}

TEST(Graphs, RejectShapesThatKeepChanging) {
  EngineOptions options = engine_options(gpt2_config(graph_sizes), {}, at::kFloat);
  options.graphs_after = 1;
  TrainEngine engine(options, Mesh());
  const MicroBatch two = graph_batch({}, 0, 0), one = first_sample_of(two);
  try {
    for (int i = 0; i < 20; ++i) {
      engine.train_step([&](int64_t) { return i % 2 == 0 ? one : two; }, {.hyper = {.lr = 1e-2}}).wait();
    }
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_NE(std::string(error.what()).find("the shapes of the micro-batches changed 16 times"),
              std::string::npos)
        << error.what();
  }
}

class GraphRun : public SmallRun {};

TEST_F(GraphRun, NeedsAGpu) {
  if (gpu_count() > 0) GTEST_SKIP() << "a GPU";
  const auto args = without(flags("run", {"--cuda-graph-impl", "local"}), {"--device"});
  EXPECT_NE(failure_of(args, 1, {}).find("--cuda-graph-impl: cuda_graph_impl = local, but no GPU is visible"),
            std::string::npos);
}

// What may wait for the device is captured only if the user asks for it. A derived class inherits the answer.
struct OwnLosses : TrainStep {};
struct OwnBatches : ModelLosses {};
struct HookedGpt : GPT {
  using GPT::GPT;
};
struct HalvedGpt : HookedGpt {
  using HookedGpt::HookedGpt;
  at::Tensor token_losses(const Activations& output, const MicroBatch& batch) override {
    return 0.5 * GPT::token_losses(output, batch);
  }
};
struct WaitingGpt : HookedGpt {
  using HookedGpt::HookedGpt;
  bool never_waits() const override { return false; }
};

template <typename Derived>
ModelBuilder builder_of(const GPTConfig& config) {
  return [config](const StageContext& part) {
    return std::make_unique<Derived>(part.parameters, config, part.stage, part.parallel, part.mesh);
  };
}

TEST(Graphs, LeaveLossesOfAProgramAlone) {
  OwnLosses losses;
  OwnBatches batches;
  const GPTConfig config = gpt2_config(graph_sizes);
  EngineOptions options = engine_options(config, {}, at::kFloat);
  options.graphs_after = 1;
  options.graphs_where_host_bound = true;
  options.model.build = builder_of<HookedGpt>(config);
  for (TrainStep* const step : std::initializer_list<TrainStep*>{nullptr, &batches, &losses}) {
    options.step = step;
    TrainEngine engine(options, Mesh());
    GraphOutcome outcome;
    run_graph_steps({.steps = steps_that_decide}, engine, outcome);
    EXPECT_EQ(outcome.graphs.empty(), step == &losses) << outcome.graphs;
  }
}

// What a run says of its graphs: nothing where the model rules them out.
void expect_that_derived_models_keep_graphs(at::Device device, const char* said) {
  const GraphUse by_themselves{.after = graph_warm_up, .where_host_bound = true};
  GraphCase c{.device = device, .steps = steps_that_decide};
  c.config.hidden_dropout = 0.1;
  const std::vector<double> plain = run_graphs(c, {}).numbers;
  c.build = builder_of<HookedGpt>(c.config);
  const GraphOutcome hooked = run_graphs(c, by_themselves);
  EXPECT_EQ(hooked.numbers, plain);
  EXPECT_NE(hooked.graphs.find(said), std::string::npos) << hooked.graphs;
  c.build = builder_of<HalvedGpt>(c.config);
  expect_the_same(c, by_themselves);
  const GraphOutcome halved = run_graphs(c, by_themselves);
  EXPECT_NEAR(halved.numbers.front(), 0.5 * plain.front(), 1e-6 * plain.front());
  EXPECT_NE(halved.graphs.find(said), std::string::npos) << halved.graphs;
  c.build = builder_of<WaitingGpt>(c.config);
  EXPECT_EQ(run_graphs(c, by_themselves).graphs, "");
}

TEST(Graphs, OfDerivedModels) {
  expect_that_derived_models_keep_graphs(at::kCPU, "CUDA graphs");
}

TEST(Graphs, RunEagerlyWhenShapesKeepChanging) {
  const MicroBatch two = graph_batch({}, 0, 0), one = first_sample_of(two);
  const auto losses = [&](const GraphUse& graphs) {
    EngineOptions options = engine_options(gpt2_config(graph_sizes), {}, at::kFloat);
    options.graphs_after = graphs.after;
    options.graphs_where_host_bound = graphs.where_host_bound;
    TrainEngine engine(options, Mesh());
    std::vector<double> all;
    for (int i = 0; i < 20; ++i) {
      const auto batches = [&](int64_t k) { return k % 2 == 0 ? one : two; };
      const StepResult step = engine.train_step(batches, {.microbatches = 6, .hyper = {.lr = 1e-2}}).wait();
      engine.finish(step);
      all.push_back(step.loss);
    }
    return all;
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(losses({.after = 1, .where_host_bound = true}), losses({}));
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_NE(
      output.find("no longer replayed as CUDA graphs: the shapes of the micro-batches changed 16 times"),
      std::string::npos)
      << output;
}

// ---- On a GPU ----

TEST_F(GpuGraphs, BitwiseEqualToEager) {
  for (const auto& [name, one] : cases(at::kCUDA)) {
    SCOPED_TRACE(name);
    EXPECT_EQ(run_graphs(one, {}).numbers, run_graphs(one, {}).numbers) << "without graphs the bits repeat";
    expect_the_same(one);
  }
}

// A thousand tiny kernels: the GPU waits for the host.
TEST_F(GpuGraphs, ChooseThemselves) {
  const GraphUse by_themselves{.after = graph_warm_up, .where_host_bound = true};
  for (auto& [name, one] : cases(at::kCUDA)) {
    SCOPED_TRACE(name);
    GraphCase c = one;
    c.steps = std::vector<int64_t>(12, 4);
    c.scales.clear();
    expect_the_same(c, by_themselves);
  }
  const std::string said =
      run_graphs({.device = at::kCUDA, .steps = steps_that_decide}, by_themselves).graphs;
  EXPECT_NE(said.find("micro-batches are replayed as CUDA graphs"), std::string::npos) << said;
}

TEST_F(GpuGraphs, OfDerivedModels) {
  expect_that_derived_models_keep_graphs(at::kCUDA, "micro-batches are replayed as CUDA graphs");
}

// A few large GEMMs: the host is far ahead.
TEST_F(GpuGraphs, LeaveABusyGpuAlone) {
  const TestSizes wide{.hidden = 4096, .ffn_hidden = 16384, .heads = 32, .positions = 512};
  const TestData data{.sequence = wide.positions};
  GPTConfig config = llama_config(wide);
  const MicroBatch batch = to_device(test_batch(data, config.vocabulary, 0, {0, 8}), at::kCUDA);
  EngineOptions options = engine_options(config, {}, at::kBFloat16);
  options.device = at::kCUDA;
  options.graphs_after = graph_warm_up;
  options.graphs_where_host_bound = true;
  TrainEngine engine(options, Mesh());
  for (int i = 0; i < 12; ++i) {
    const StepInputs inputs{.microbatches = 4, .hyper = {.lr = 1e-5}};
    EXPECT_EQ(engine.finish(engine.train_step([&](int64_t) { return batch; }, inputs).wait()), std::nullopt);
  }
}

// Its backward is not deterministic.
TEST_F(GpuGraphs, CaptureCudnnAttention) {
  at::globalContext().setDeterministicAlgorithms(false, false);
  const GraphCase c{.config = llama_config(graph_sizes), .device = at::kCUDA, .dtype = at::kBFloat16};
  const GraphOutcome expected = run_graphs(c, {}), actual = run_graphs(c, {.after = graph_warm_up});
  for (size_t i = 0; i < expected.numbers.size(); ++i) {
    EXPECT_NEAR(actual.numbers[i], expected.numbers[i], 5e-2 * std::abs(expected.numbers[i])) << i;
  }
}

// Waits for the loss on the host.
struct Waiting : TrainStep {
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    StepLoss result = TrainStep::forward_step(model, output, batch);
    EXPECT_GT(result.losses[0].sum.item<double>(), 0.0);
    return result;
  }
};

void train_what_waits() {
  Waiting step;
  const GraphCase c{.device = at::kCUDA};
  EngineOptions options = engine_options(c.config, {}, c.dtype);
  options.device = c.device;
  options.graphs_after = 1;
  options.step = &step;
  TrainEngine engine(options, Mesh());
  for (int i = 0; i < 2; ++i) {
    engine.train_step([&](int64_t) { return graph_batch(c, 0, 0); }, {.hyper = {.lr = 1e-2}}).wait();
  }
}

// In a separate process, since a failed capture leaves CUDA in an undefined state.
TEST_F(GpuGraphs, ReportUncapturableWork) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    try {
      train_what_waits();
    } catch (const UserError& error) {
      fmt::print(stderr, "{}\n", error.what());  // lint: allow(output): what the test reads
      std::_Exit(static_cast<int>(error.exit_code()));
    }
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(2), "--cuda-graph-impl: .* cannot be captured as a CUDA graph");
}

}  // namespace
}  // namespace teratron
