#include "teratron/plan/rank_memory.h"

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

std::string first_advice(const Args& flags, const RankMemory& memory, int64_t world_size = 1) {
  return memory_advice(validated(flags, world_size).args, memory).front();
}

TEST(RankMemory, CountsTheBytesOfEachPart) {
  const Arguments args = validated({"--bf16", "--use-distributed-optimizer"}, 4).args;
  const RankMemory memory = rank_memory(args, model_from_args(args), 0);
  const auto count = static_cast<double>(memory.parameters);
  EXPECT_GT(count, 0.0);
  EXPECT_EQ(memory.weights, 2.0 * count);
  EXPECT_EQ(memory.gradients, 4.0 * count);
  EXPECT_EQ(memory.optimizer, 2.5 * count);
  EXPECT_EQ(memory.sum(), 8.5 * count + memory.activations);
  const Arguments fp16 = validated({"--fp16", "--use-distributed-optimizer"}, 4).args;
  EXPECT_EQ(rank_memory(fp16, model_from_args(fp16), 0).optimizer, 3.0 * count);
}

TEST(RankMemory, CountsTheCopiesInFp8) {
  const Arguments bf16 = validated({"--bf16"}).args,
                  fp8 = validated({"--bf16", "--fp8-format", "hybrid"}).args;
  // Four layers of hidden size 64: QKV, projection, fc1 and fc2 are 3, 1, 4 and 4 squares.
  EXPECT_EQ(
      rank_memory(fp8, model_from_args(fp8), 0).weights - rank_memory(bf16, model_from_args(bf16), 0).weights,
      2.0 * 4 * 12 * 64 * 64);
}

TEST(RankMemory, KnowsTheWeightsInFp8) {
  const auto fp8_bytes = [](const Args& more) {
    Args flags = {"--bf16", "--fp8-format", "hybrid", "--vocab-size", "1000"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Arguments args = validated(flags).args;
    const RankMemory memory = rank_memory(args, model_from_args(args), 0);
    return memory.weights - 2.0 * static_cast<double>(memory.parameters);
  };
  EXPECT_EQ(fp8_bytes({"--fp8-output-proj"}), 2.0 * (4 * 12 * 64 * 64 + 1024 * 64));
  EXPECT_EQ(fp8_bytes({"--first-last-layers-bf16"}), 2.0 * 2 * 12 * 64 * 64);
}

TEST(RankMemory, AdvisesFirstForTheLargerPart) {
  const RankMemory state{.weights = 10.0, .activations = 1.0};
  const RankMemory activations{.weights = 1.0, .activations = 10.0};
  EXPECT_EQ(first_advice({}, activations).substr(0, 20), "--micro-batch-size 1");
  EXPECT_EQ(first_advice({}, state).substr(0, 30), "--tensor-model-parallel-size 2");
  EXPECT_EQ(first_advice({"--bf16"}, state, 2).substr(0, 27), "--use-distributed-optimizer");
  EXPECT_EQ(first_advice({"--micro-batch-size", "1", "--bf16"}, activations).substr(0, 23),
            "--recompute-granularity");
}

void expect_less(const Args& flags, const Args& advised, int64_t world_size) {
  Args both = flags;
  both.insert(both.end(), advised.begin(), advised.end());
  const Arguments before = validated(flags, 2).args, after = validated(both, world_size).args;
  EXPECT_LT(rank_memory(after, model_from_args(after), 0).sum(),
            rank_memory(before, model_from_args(before), 0).sum())
      << advised[0];
}

TEST(RankMemory, EveryAdviceReducesMemory) {
  const Args recompute = {"--recompute-granularity", "full", "--recompute-method", "uniform",
                          "--recompute-num-layers",  "1"};
  expect_less({}, {"--use-distributed-optimizer"}, 2);
  expect_less({}, {"--tensor-model-parallel-size", "2"}, 4);
  expect_less({}, {"--pipeline-model-parallel-size", "2"}, 4);
  expect_less({}, {"--micro-batch-size", "1"}, 2);
  expect_less({}, recompute, 2);
  expect_less({"--tensor-model-parallel-size", "2"}, {"--sequence-parallel"}, 2);
  const Arguments fp32 = validated({}).args, bf16 = validated({"--bf16"}).args;
  EXPECT_EQ(rank_memory(bf16, model_from_args(bf16), 0).activations * 2.0,
            rank_memory(fp32, model_from_args(fp32), 0).activations);
}

TEST(RankMemory, DoesNotAdviseWhatIsDoneAlready) {
  const Args flags = {"--bf16",
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
  const std::vector<std::string> advice = memory_advice(validated(flags, 4).args, {});
  ASSERT_EQ(advice.size(), 1U);
  EXPECT_NE(advice[0].find("--tensor-model-parallel-size 4"), std::string::npos);
}

}  // namespace
}  // namespace teratron
