#include "teratron/plan/rank_memory.h"

#include <algorithm>
#include <mutex>
#include <ranges>

#include "teratron/comm/host/thread_world.h"
#include "teratron/optim/matrix_rule.h"
#include "teratron/optim/optimizer.h"
#include "teratron/plan/flops.h"
#include "teratron/settings/optimizer_rules.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

const Family& gpt() {
  return find_family("gpt");
}

ModelPlan planned_model(const Arguments& args) {
  return gpt().plan(args, planned_vocabulary(args));
}

RankMemory memory_of(const Args& flags, int64_t world_size = 1, int64_t stage = 0) {
  const Arguments args = validated(flags, world_size).args;
  return rank_memory(args, planned_model(args), stage);
}

TEST(RankMemory, CountsTheBytesOfEachPart) {
  const RankMemory memory = memory_of({"--bf16", "--use-distributed-optimizer"}, 4);
  const auto count = static_cast<double>(memory.parameters);
  EXPECT_GT(count, 0.0);
  EXPECT_EQ(memory.weights, 2.0 * count);
  EXPECT_EQ(memory.gradients, 4.0 * count);
  EXPECT_EQ(memory.optimizer, 2.5 * count);
  EXPECT_EQ(memory.peak(), 8.5 * count + memory.activations + memory.temporary);
  EXPECT_EQ(memory_of({"--fp16", "--use-distributed-optimizer"}, 4).optimizer, 3.0 * count);
}

/// Each choice of --optimizer has rules, whose states are counted.
TEST(RankMemory, FollowsTheOptimizerRule) {
  const std::span<const Field> fields = arguments_schema().fields();
  const auto field = std::ranges::find(fields, std::string_view("optimizer"), &Field::name);
  ASSERT_TRUE(field != fields.end());
  for (const auto choice : std::views::split(field->traits.choices, '|')) {
    const std::string name(choice.begin(), choice.end());
    const Args flags = {"--optimizer", name};
    const OptimizerRules rules = optimizer_rules(validated(flags, 1).args);
    const RankMemory memory = memory_of(flags);
    if (rules.size() > 1) continue;
    EXPECT_EQ(memory.optimizer / static_cast<double>(memory.parameters), state_bytes(*rules[0].rule)) << name;
  }
  EXPECT_EQ(memory_of({"--optimizer", "sgd", "--sgd-momentum", "0"}).optimizer, 0.0);
}

/// Keeps a sum of the gradients of whole matrices.
class GradientSums : public MatrixRule {
 public:
  std::vector<RuleState> states() const override { return {{.name = "sum"}}; }

 protected:
  Update update(const Matrix& matrix) const override {
    return {.direction = at::zeros_like(matrix.grad), .states = {matrix.states[0] + matrix.grad}};
  }
};

/// The bytes that the fullest of the ranks allocates with the distributed optimizer.
RankMemory allocated(const Arguments& args, int64_t ranks, const OptimizerRules& rules) {
  RankMemory most;
  std::mutex mutex;
  run_ranks({.dp = ranks}, [&](const Mesh& mesh) {
    ParameterSet set({.dtype = at::kFloat, .seed = 1});
    const ModelPlan plan = planned_model(args);
    const StageSpec stage{.layers = plan.layers()};
    const auto model = plan.build({set, stage, TensorParallel{}, mesh});
    ParamAndGradBuffers buffers(set, mesh, {.sharded = true, .bucket_size = *args.ddp_bucket_size}, {},
                                rules);
    const Optimizer optimizer(buffers, mesh, {});
    RankMemory own{.optimizer = static_cast<double>(optimizer.state_bytes())};
    for (const ParamAndGradBuffer& buffer : buffers) {
      own.weights += static_cast<double>(buffer.parameters().nbytes());
      own.gradients += static_cast<double>(buffer.gradients().nbytes());
    }
    const std::lock_guard lock(mutex);
    most = {.weights = std::max(most.weights, own.weights),
            .gradients = std::max(most.gradients, own.gradients),
            .optimizer = std::max(most.optimizer, own.optimizer)};
  });
  return most;
}

TEST(RankMemory, CountsThePaddingOfWholeMatrices) {
  const OptimizerRules rules = {{std::make_shared<GradientSums>()}};
  for (const int64_t ranks : {1, 3, 4}) {
    for (const std::string bucket : {"1000", "30000", "1000000"}) {
      const Arguments args =
          validated({"--use-distributed-optimizer", "--ddp-bucket-size", bucket, "--global-batch-size", "24"},
                    ranks)
              .args;
      const RankMemory planned = rank_memory(args, planned_model(args), 0, rules);
      const RankMemory real = allocated(args, ranks, rules);
      const std::string name = fmt::format("{} ranks, buckets of {}", ranks, bucket);
      EXPECT_EQ(planned.weights, real.weights) << name;
      EXPECT_EQ(planned.gradients, real.gradients) << name;
      EXPECT_EQ(planned.optimizer, real.optimizer) << name;
      EXPECT_EQ(planned.weights > 4.0 * static_cast<double>(planned.parameters), ranks > 1) << name;
    }
  }
}

/// Two windows of 64 MiB where a rank's part of a bucket has at least 1 MiB.
TEST(RankMemory, CountsTheWindowsThatPushGradients) {
  const auto temporary = [](const Args& more, int64_t ranks) {
    Args flags = {"--bf16", "--vocab-size", "30000", "--hidden-size", "512"};
    flags.insert(flags.end(), more.begin(), more.end());
    return memory_of(flags, ranks).temporary;
  };
  const double windows = 2.0 * 64 * 1024 * 1024;
  EXPECT_EQ(temporary({"--use-distributed-optimizer"}, 4) - temporary({}, 4), windows);
  EXPECT_EQ(temporary({"--use-distributed-optimizer"}, 1), temporary({}, 1));
}

/// Two windows of 64 MiB for input gradients, and one of the size of a row layer's output, where a rank's
/// part of it has at least 1 MiB.
TEST(RankMemory, CountsTheWindowsOfSequenceParallelism) {
  const auto temporary = [](const Args& more) {
    Args flags = {"--bf16", "--tp", "2", "--sequence-parallel"};
    flags.insert(flags.end(), more.begin(), more.end());
    return memory_of(flags, 2).temporary;
  };
  // Twice the tokens need twice the memory, but for what does not depend on them.
  const auto constant_of = [&](const Args& more) {
    Args twice = more;
    twice.back() = std::to_string(2 * std::stoll(more.back()));
    return 2.0 * temporary(more) - temporary(twice);
  };
  const double windows = 2.0 * 64 * 1024 * 1024, output = 2.0 * 32 * 64;
  const auto threshold = static_cast<int64_t>(2.0 * 1024 * 1024 / output);
  const std::string large = std::to_string(threshold);
  EXPECT_NEAR(constant_of({"--micro-batch-size", large}) - constant_of({"--micro-batch-size", "2"}), windows,
              1.0);
  const Args fp8 = {"--fp8-format", "hybrid", "--micro-batch-size", large};
  EXPECT_NEAR(constant_of(fp8) - constant_of({"--fp8-format", "hybrid", "--micro-batch-size", "2"}), windows,
              1.0);
  // From one below the threshold, where nothing is pushed.
  const double step = temporary({"--micro-batch-size", large}) -
                      temporary({"--micro-batch-size", std::to_string(threshold - 1)});
  const double sample = temporary({"--micro-batch-size", std::to_string(threshold - 1)}) -
                        temporary({"--micro-batch-size", std::to_string(threshold - 2)});
  EXPECT_NEAR(step - sample, windows + output * static_cast<double>(threshold), 1.0);
}

/// A column of another length that no hidden states have, as labels may be, needs no window.
TEST(RankMemory, CountsTheWindowsOfTheLengthsOfHiddenStates) {
  const Arguments args =
      validated({"--bf16", "--tp", "2", "--sequence-parallel", "--micro-batch-size", "4096"}, 2).args;
  ModelPlan plan = planned_model(args);
  const double before = rank_memory(args, plan, 0).temporary;
  plan.batch.push_back({.name = "summary", .shape = {2 * *args.seq_length}});
  EXPECT_EQ(rank_memory(args, plan, 0).temporary, before);
}

/// A window for each block of keys and values on its way, of the next power of two.
TEST(RankMemory, CountsTheWindowsOfContextParallelism) {
  const auto temporary = [](int64_t samples, int64_t ranks, const std::string& comm) {
    const std::string size = std::to_string(ranks);
    return memory_of({"--bf16", "--cp", size, "--cp-comm-type", comm, "--hidden-dropout", "0",
                      "--attention-dropout", "0", "--micro-batch-size", std::to_string(samples)},
                     ranks)
        .temporary;
  };
  // What is more from the sample on that needs larger windows, besides what each sample adds.
  const auto step = [&](int64_t ranks, const std::string& comm) {
    const double block = 2.0 * 2.0 * 32 * 64 / static_cast<double>(ranks);  // of a sample
    const auto most = static_cast<int64_t>(4.0 * 1024 * 1024 / block);
    return temporary(most + 1, ranks, comm) - 2.0 * temporary(most, ranks, comm) +
           temporary(most - 1, ranks, comm);
  };
  for (const auto& [ranks, windows] : {std::pair<int64_t, double>{2, 1.0}, {4, 3.0}, {8, 4.0}})
    EXPECT_NEAR(step(ranks, "p2p"), windows * 4.0 * 1024 * 1024, 1.0) << ranks << " ranks";
  EXPECT_NEAR(step(2, "all_gather"), 0.0, 1.0);
}

// Windows for tokens and gradients in bf16, and for sums in fp32.
TEST(RankMemory, CountsTheWindowsOfExperts) {
  const auto temporary = [](int64_t samples, const std::string& dispatcher) {
    return memory_of({"--bf16", "--num-experts", "8", "--ep", "2", "--moe-token-dispatcher-type", dispatcher,
                      "--micro-batch-size", std::to_string(samples)},
                     2)
        .temporary;
  };
  const auto step = [&](double mebibytes_per_sample, const std::string& dispatcher) {
    const auto most = static_cast<int64_t>(4.0 / mebibytes_per_sample);
    return temporary(most + 1, dispatcher) - 2.0 * temporary(most, dispatcher) +
           temporary(most - 1, dispatcher);
  };
  constexpr double mebibyte = 1024.0 * 1024.0, sample = 2.0 * 32 * 64 / mebibyte;
  EXPECT_NEAR(step(2.0 * sample, "allgather"), (4.0 + 4.0 + 8.0) * mebibyte, 1.0);
  EXPECT_NEAR(step(sample, "alltoall"), (4.0 + 8.0) * mebibyte, 1.0);
}

// Experts are divided over expert-parallel ranks, and their optimizer state over the others.
TEST(RankMemory, CountsTheExpertsOfARank) {
  const Args flags = {"--num-experts",         "8",        "--moe-ffn-hidden-size",      "32",
                      "--disable-bias-linear", "--swiglu", "--use-distributed-optimizer"};
  const auto memory = [&flags](const Args& more) {
    Args all = flags;
    all.insert(all.end(), more.begin(), more.end());
    return memory_of(all, 4);
  };
  const double expert = 3.0 * 64 * 32, layers = 4.0;
  const RankMemory one = memory({}), two = memory({"--ep", "2"}), four = memory({"--ep", "4"});
  EXPECT_EQ(static_cast<double>(one.parameters - two.parameters), layers * 4 * expert);
  EXPECT_EQ(static_cast<double>(two.parameters - four.parameters), layers * 2 * expert);
  EXPECT_EQ(one.weights - two.weights, 4.0 * layers * 4 * expert);
  EXPECT_EQ(one.gradients - two.gradients, 4.0 * layers * 4 * expert);
  // Each rank's share of all experts is the same: 8 / 4, 4 / 2 and 2.
  EXPECT_EQ(one.optimizer, two.optimizer);
  EXPECT_EQ(one.optimizer, four.optimizer);
  const double activations = one.activations;
  EXPECT_LT(memory({"--moe-layer-recompute"}).activations, activations);
  EXPECT_GT(memory({"--moe-expert-capacity-factor", "2", "--moe-pad-expert-input-to-capacity"}).activations,
            activations);
}

TEST(RankMemory, CountsTheCopiesInFp8) {
  // Four layers of hidden size 64: QKV, projection, fc1 and fc2 are 3, 1, 4 and 4 squares.
  EXPECT_EQ(memory_of({"--bf16", "--fp8-format", "hybrid"}).weights - memory_of({"--bf16"}).weights,
            2.0 * 4 * 12 * 64 * 64);
}

TEST(RankMemory, KnowsTheWeightsInFp8) {
  const auto fp8_bytes = [](const Args& more) {
    Args flags = {"--bf16", "--fp8-format", "hybrid", "--vocab-size", "1000"};
    flags.insert(flags.end(), more.begin(), more.end());
    const RankMemory memory = memory_of(flags);
    return memory.weights - 2.0 * static_cast<double>(memory.parameters);
  };
  EXPECT_EQ(fp8_bytes({"--fp8-output-proj"}), 2.0 * (4 * 12 * 64 * 64 + 1024 * 64));
  EXPECT_EQ(fp8_bytes({"--first-last-layers-bf16"}), 2.0 * 2 * 12 * 64 * 64);
  EXPECT_EQ(fp8_bytes({"--num-experts", "8", "--moe-ffn-hidden-size", "48"}),
            2.0 * 4 * (4 * 64 * 64 + 8 * 2 * 48 * 64));
}

// 32 x 2 tokens of 64 channels in four layers, in bf16 on a GPU: a layer saves the inputs of both norms and
// of both column layers, QKV, the output and logsumexp of attention, the MLP's hidden states before and after
// GELU.
TEST(RankMemory, CountsActivations) {
  const double hidden = 2.0 * 64 * 64, norm = 2.0 * 4 * 64, logsumexp = 8.0 * 64 * 4;
  const double layer = (1 + 1 + 3 + 1 + 1 + 1 + 4 + 4) * hidden + 2 * norm + logsumexp;
  const double logits = 2.0 * 64 * 128;
  EXPECT_EQ(memory_of({"--bf16", "--hidden-dropout", "0", "--attention-dropout", "0"}).activations,
            4 * layer + 2 * hidden + norm + logits);
}

TEST(RankMemory, CountsOffloadedActivationsOnTheHost) {
  // Large enough that no operator's activations stay.
  const Args large = {
      "--hidden-size",    "512", "--seq-length",        "1024", "--max-position-embeddings", "1024", "--bf16",
      "--hidden-dropout", "0",   "--attention-dropout", "0"};
  const auto memory = [&](Args more, int64_t ranks = 1) {
    more.insert(more.begin(), large.begin(), large.end());
    return memory_of(more, ranks);
  };
  const RankMemory none = memory({}), two = memory({"--cpu-offloading-num-layers", "2"});
  EXPECT_EQ(none.host, 0.0);
  EXPECT_GT(two.host, 0.0);
  EXPECT_NEAR(none.activations - two.activations, two.host, 1.0);
  EXPECT_LT(two.peak(), none.peak() - 0.9 * two.host);
  EXPECT_NEAR(memory({"--cpu-offloading-num-layers", "4"}).host, 2.0 * two.host, 1.0);
  const Args stages = {"--pp", "4", "--num-micro-batches", "8", "--cpu-offloading-num-layers", "1"};
  EXPECT_NEAR(memory(stages, 4).host, 4.0 * two.host / 2.0, 1.0) << "four micro-batches in flight";
}

TEST(RankMemory, CountsTheMicroBatchesInFlight) {
  const auto activations = [](int64_t stage, const char* micro_batches) {
    return memory_of({"--pp", "4", "--num-micro-batches", micro_batches}, 4, stage).activations;
  };
  EXPECT_EQ(activations(1, "8"), 3.0 * activations(1, "1"));
  EXPECT_EQ(activations(2, "8"), 2.0 * activations(2, "1"));
}

TEST(RankMemory, OfTheLargestStage) {
  const Arguments args = validated({"--pp", "2", "--vocab-size", "10000"}, 2).args;
  const ModelPlan model = planned_model(args);
  EXPECT_EQ(largest_rank_memory(args, model).peak(),
            std::max(rank_memory(args, model, 0).peak(), rank_memory(args, model, 1).peak()));
}

TEST(LeastStepSeconds, GrowsWithTheWork) {
  const auto seconds = [](const Args& flags, const char* gpu) {
    const Arguments args = validated(flags).args;
    return least_step_seconds(args, planned_model(args), *find_gpu(gpu));
  };
  const double one = seconds({"--bf16"}, "H100"),
               four = seconds({"--bf16", "--num-micro-batches", "4"}, "H100");
  EXPECT_GT(one, 0.0);
  EXPECT_GT(four, 2.0 * one);
  EXPECT_LT(four, 4.0 * one) << "there is one optimizer step";
  EXPECT_LT(seconds({"--bf16"}, "H200"), one) << "small models wait for memory";
}

}  // namespace
}  // namespace teratron
