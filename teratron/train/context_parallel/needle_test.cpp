// A needle in a haystack: over four context-parallel ranks a model learns to copy a token from far away, as
// on one rank.
#include <algorithm>
#include <cstdlib>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "teratron/models/context_parallel_batch.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"

namespace teratron {
namespace {

constexpr int64_t samples = 4, needles = 16, hay = 16, question = 24;

struct Haystack {
  int64_t length = 0, needle = 0;  // tokens
};

// Hay of eight tokens, a needle in the first quarter, which is one of 16 tokens repeated, and a question at
// the end, whose answer is that token. Only the answer counts.
MicroBatch batch_of(const Haystack& stack, int64_t step) {
  const int64_t length = stack.length;
  at::Generator generator = at::detail::createCPUGenerator(1000 + step);
  const at::Tensor tokens = at::randint(hay, hay + 8, {length, samples}, generator, at::kLong);
  const at::Tensor place = at::randint(0, length / 4, {samples}, generator, at::kLong);
  const at::Tensor needle = at::randint(0, needles, {samples}, generator, at::kLong);
  const at::Tensor labels = at::zeros({length, samples}, at::kLong);
  const at::Tensor mask = at::zeros({length, samples});
  for (int64_t b = 0; b < samples; ++b) {
    tokens.select(1, b).narrow(0, place[b].item<int64_t>(), stack.needle).copy_(needle[b]);
    tokens[length - 1][b].fill_(question);
    labels[length - 1][b] = needle[b];
    mask[length - 1][b].fill_(1.0);
  }
  return {
      .tensors = {{"tokens", tokens},
                  {"labels", labels},
                  {"loss_mask", mask},
                  {"sequence_index", at::arange(length, at::kLong).unsqueeze(1).expand({length, samples})}},
      .sample_ids_B = at::arange(step * samples, (step + 1) * samples, at::kLong)};
}

GPTConfig needle_config(const Haystack& stack, ContextParallelComm comm) {
  GPTConfig config = llama_config({.hidden = 32, .ffn_hidden = 64, .heads = 4, .positions = stack.length});
  config.layers = 1;
  config.position = PositionEmbedding::none;
  config.context_parallel_comm = {comm};
  config.query_groups = 4;
  config.init_std = 0.2;
  return config;
}

struct NeedleRun {
  Haystack stack;
  ContextParallelComm comm = ContextParallelComm::p2p;
  int64_t ranks = 1, steps = 110;
};

std::vector<double> losses_of(const NeedleRun& run) {
  const Layout layout{.cp = run.ranks};
  const GPTConfig config = needle_config(run.stack, run.comm);
  std::vector<double> losses(static_cast<size_t>(run.steps));
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(engine_options(config, layout, at::kFloat), mesh);
    for (int64_t step = 0; step < run.steps; ++step) {
      const auto batches = [&](int64_t) {
        return cut_over_context(batch_of(run.stack, step), mesh.group(Axis::cp));
      };
      const StepResult result = engine.train_step(batches, {.hyper = {.lr = 5e-3}}).wait();
      if (mesh.rank() == 0) losses[static_cast<size_t>(step)] = result.losses.front();
    }
  });
  return losses;
}

void expect_curve(const std::vector<double>& losses, const std::vector<double>& expected) {
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 1e-3 + 1e-2 * expected[i]) << "step " << i;
}

void expect_found(const Haystack& stack) {
  const std::vector<double> expected = losses_of({.stack = stack});
  EXPECT_GT(expected.front(), 2.0);  // log(16) = 2.8
  const std::vector<double> losses = losses_of({.stack = stack, .ranks = 4});
  expect_curve(losses, expected);
  EXPECT_LT(*std::max_element(losses.end() - 10, losses.end()), 0.15);
  for (const ContextParallelComm comm : {ContextParallelComm::all_gather, ContextParallelComm::a2a})
    expect_curve(losses_of({.stack = stack, .comm = comm, .ranks = 4, .steps = 20}), expected);
}

TEST(Needle, IsFoundOverFourRanks) {
  expect_found({.length = 512, .needle = 32});
}

TEST(Needle, IsFoundInMuchHay) {
  if (!std::getenv("TERATRON_LONG_TESTS")) GTEST_SKIP() << "takes minutes: set TERATRON_LONG_TESTS";
  expect_found({.length = 4096, .needle = 128});
}

}  // namespace
}  // namespace teratron
