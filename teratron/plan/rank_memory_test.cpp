#include "teratron/plan/rank_memory.h"

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

std::string first_advice(const Texts& flags, const RankMemory& memory, int64_t world_size = 1) {
  return memory_advice(finished(flags, world_size).args, memory).front();
}

TEST(RankMemory, CountsTheBytesOfEachPart) {
  const Arguments args = finished({"--bf16", "--use-distributed-optimizer"}, 4).args;
  const RankMemory memory = rank_memory(args, planned_model(args), 0);
  const auto count = static_cast<double>(memory.parameters);
  EXPECT_GT(count, 0.0);
  EXPECT_EQ(memory.weights, 2.0 * count);
  EXPECT_EQ(memory.gradients, 4.0 * count);
  EXPECT_EQ(memory.optimizer, 2.5 * count);
  EXPECT_EQ(memory.sum(), 8.5 * count + memory.activations);
  const Arguments fp16 = finished({"--fp16", "--use-distributed-optimizer"}, 4).args;
  EXPECT_EQ(rank_memory(fp16, planned_model(fp16), 0).optimizer, 3.0 * count);
}

TEST(RankMemory, CountsTheCopiesInFp8) {
  const Arguments bf16 = finished({"--bf16"}).args, fp8 = finished({"--bf16", "--fp8-format", "hybrid"}).args;
  // Four layers of hidden size 64: QKV, projection, fc1 and fc2 are 3, 1, 4 and 4 squares.
  EXPECT_EQ(
      rank_memory(fp8, planned_model(fp8), 0).weights - rank_memory(bf16, planned_model(bf16), 0).weights,
      2.0 * 4 * 12 * 64 * 64);
}

TEST(RankMemory, KnowsWhichWeightsAreInFp8) {
  const auto fp8_bytes = [](const Texts& more) {
    Texts flags = {"--bf16", "--fp8-format", "hybrid", "--vocab-size", "1000"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Arguments args = finished(flags).args;
    const RankMemory memory = rank_memory(args, planned_model(args), 0);
    return memory.weights - 2.0 * static_cast<double>(memory.parameters);
  };
  EXPECT_EQ(fp8_bytes({"--fp8-output-proj"}), 2.0 * (4 * 12 * 64 * 64 + 1024 * 64));
  EXPECT_EQ(fp8_bytes({"--first-last-layers-bf16"}), 2.0 * 2 * 12 * 64 * 64);
}

TEST(RankMemory, AdvisesFirstWhatShrinksTheLargerPart) {
  const RankMemory state{.weights = 10.0, .activations = 1.0};
  const RankMemory activations{.weights = 1.0, .activations = 10.0};
  EXPECT_EQ(first_advice({}, activations).substr(0, 20), "--micro-batch-size 1");
  EXPECT_EQ(first_advice({}, state).substr(0, 30), "--tensor-model-parallel-size 2");
  EXPECT_EQ(first_advice({"--bf16"}, state, 2).substr(0, 27), "--use-distributed-optimizer");
  EXPECT_EQ(first_advice({"--micro-batch-size", "1", "--bf16"}, activations).substr(0, 23),
            "--recompute-granularity");
}

// What the flags advised give, against what `flags` alone need.
void expect_less(const Texts& flags, const Texts& advised, int64_t world_size) {
  Texts both = flags;
  both.insert(both.end(), advised.begin(), advised.end());
  const Arguments before = finished(flags, 2).args, after = finished(both, world_size).args;
  EXPECT_LT(rank_memory(after, planned_model(after), 0).sum(),
            rank_memory(before, planned_model(before), 0).sum())
      << advised[0];
}

TEST(RankMemory, EveryAdviceGivesLess) {
  const Texts recompute = {"--recompute-granularity", "full", "--recompute-method", "uniform",
                           "--recompute-num-layers",  "1"};
  expect_less({}, {"--use-distributed-optimizer"}, 2);
  expect_less({}, {"--tensor-model-parallel-size", "2"}, 4);
  expect_less({}, {"--pipeline-model-parallel-size", "2"}, 4);
  expect_less({}, {"--micro-batch-size", "1"}, 2);
  expect_less({}, recompute, 2);
  expect_less({"--tensor-model-parallel-size", "2"}, {"--sequence-parallel"}, 2);
  const Arguments fp32 = finished({}).args, bf16 = finished({"--bf16"}).args;
  EXPECT_EQ(rank_memory(bf16, planned_model(bf16), 0).activations * 2.0,
            rank_memory(fp32, planned_model(fp32), 0).activations);
}

TEST(RankMemory, AdviceIsNotWhatIsDoneAlready) {
  const Texts flags = {"--bf16",
                       "--use-distributed-optimizer",
                       "--micro-batch-size",
                       "1",
                       "--recompute-granularity",
                       "full",
                       "--recompute-method",
                       "uniform",
                       "--tensor-model-parallel-size",
                       "2",
                       "--sequence-parallel"};
  const std::vector<std::string> advice = memory_advice(finished(flags, 4).args, {});
  ASSERT_EQ(advice.size(), 1U);
  EXPECT_NE(advice[0].find("--tensor-model-parallel-size 4"), std::string::npos);
}

}  // namespace
}  // namespace teratron
