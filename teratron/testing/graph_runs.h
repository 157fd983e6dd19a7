// Training with CUDA graphs beside the same steps without: losses, gradients and weights must be bitwise
// equal. On a CPU nothing is captured, but data and scalars take the same path (device/device_graph.h).
#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "teratron/device/device.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {

inline const TestSizes graph_sizes{.hidden = 64, .ffn_hidden = 256, .heads = 4, .positions = 64};
inline constexpr int64_t graph_warm_up = 2;

/// Steps of so many micro-batches of two samples, each with its loss scale and followed by an evaluation.
struct GraphCase {
  GPTConfig config = gpt2_config(graph_sizes);
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  std::optional<Fp8Options> fp8 = {};
  std::optional<LoraOptions> lora = {};
  std::vector<int64_t> steps = {4, 4, 4, 4, 4, 4};
  std::vector<double> scales = {};  // empty: 1
  bool documents = false;
  bool in_every_batch = true;  // documents
  Layout layout = {};
  ModelBuilder build = nullptr;  // null: GPT's
};

struct GraphOutcome {
  std::vector<double> numbers;  // losses of steps and evaluations, norms of gradients
  /// After each step: gradients, weights, and what else the model keeps and measures.
  std::vector<std::vector<float>> gradients, weights, state;
  std::string graphs;  // what became of them by themselves
};

inline MicroBatch graph_batch(const GraphCase& c, int64_t step, int64_t first) {
  const bool documents = c.documents && (c.in_every_batch || (step + first / 2) % 3 == 1);
  const TestData data{.sequence = graph_sizes.positions, .documents = documents};
  const MicroBatch batch =
      to_device(test_batch(data, c.config.vocabulary, step, {first, first + 2}), c.device);
  // Uneven token counts, the divisor of a micro-batch's mean.
  batch["loss_mask"].narrow(0, 0, 1 + first).zero_();
  return batch;
}

inline void add_values(const at::Tensor& tensor, std::vector<float>& values) {
  const at::Tensor flat = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
  values.insert(values.end(), flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
}

/// Graphs of a run: graphs_after, and whether only where the GPU waits for the host (a CPU always does).
struct GraphUse {
  int64_t after = 0;
  bool where_host_bound = false;
};

inline void run_graph_steps(const GraphCase& c, TrainEngine& engine, GraphOutcome& outcome) {
  const int64_t ranks = engine.mesh().data_parallel().size, rank = engine.mesh().data_parallel().rank;
  for (size_t step = 0; step < c.steps.size(); ++step) {
    const auto batches = [&](int64_t i) {
      return graph_batch(c, static_cast<int64_t>(step), 2 * (i * ranks + rank));
    };
    const double scale = c.scales.empty() ? 1.0 : c.scales.at(step);
    const StepResult result =
        engine
            .train_step(batches, {.microbatches = c.steps[step], .hyper = {.lr = 1e-2, .loss_scale = scale}})
            .wait();
    const auto graphs = engine.finish(result);
    if (graphs) outcome.graphs = *graphs;
    std::vector<float>&gradients = outcome.gradients.emplace_back(),
    &weights = outcome.weights.emplace_back(),
    &state = outcome.state.emplace_back(result.layer_sums.begin(), result.layer_sums.end());
    for (ParamAndGradBuffer& buffer : engine.buffers()) add_values(buffer.gradients(), gradients);
    outcome.numbers.insert(outcome.numbers.end(),
                           {result.loss, result.grad_norm, engine.evaluate(batches, 1).loss});
    for (ParamAndGradBuffer& buffer : engine.buffers()) add_values(buffer.parameters(), weights);
    for (const Buffer& buffer : engine.parameters().buffers()) add_values(buffer.tensor, state);
  }
}

inline GraphOutcome run_graphs(const GraphCase& c, const GraphUse& graphs) {
  GraphOutcome outcome;
  run_layout(c.layout, [&](const Mesh& mesh) {
    EngineOptions options = engine_options(c.config, c.layout, c.dtype);
    options.device = c.device;
    if (c.build) options.model.build = c.build;
    options.precision.fp8 = c.fp8;
    options.lora = c.lora;
    options.optimizer.clip_grad = 1.0;
    options.graphs_after = graphs.after;
    options.graphs_where_host_bound = graphs.where_host_bound;
    TrainEngine engine(options, mesh);
    GraphOutcome mine;
    run_graph_steps(c, engine, mine);
    if (mesh.rank() == 0) outcome = mine;
  });
  return outcome;
}

inline void expect_the_same(const GraphCase& c, const GraphUse& graphs = {.after = graph_warm_up}) {
  const GraphOutcome expected = run_graphs(c, {}), actual = run_graphs(c, graphs);
  EXPECT_NE(expected.numbers.front(), expected.numbers.at(3)) << "it trains";
  EXPECT_EQ(actual.numbers, expected.numbers);
  for (size_t step = 0; step < c.steps.size(); ++step) {
    EXPECT_TRUE(actual.gradients.at(step) == expected.gradients.at(step)) << "gradients of step " << step;
    EXPECT_TRUE(actual.weights.at(step) == expected.weights.at(step)) << "weights of step " << step;
    EXPECT_EQ(actual.state.at(step), expected.state.at(step)) << "step " << step;
  }
}

class GpuGraphs : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

}  // namespace teratron
