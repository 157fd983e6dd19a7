#include <algorithm>

#include "teratron/plan/rank_memory.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

std::vector<std::string> advice_for(const Args& flags, int64_t world_size = 1) {
  return memory_advice(find_family("gpt"), validated(flags, world_size).args);
}

TEST(MemoryAdvice, NamesWhatHelpsMost) {
  // Activations of a large micro-batch without dropout; then parameters.
  const Args activations = {"--micro-batch-size", "64", "--hidden-dropout", "0", "--attention-dropout", "0"};
  EXPECT_TRUE(advice_for(activations).front().starts_with("--recompute-granularity full"));
  Args logits = activations;
  logits.insert(logits.end(), {"--vocab-size", "50000", "--recompute-granularity", "full",
                               "--recompute-method", "uniform", "--recompute-num-layers", "1"});
  EXPECT_TRUE(advice_for(logits).front().starts_with("--loss-chunks 8: "));
  // Large enough that sharding saves more than the windows of gradients take.
  const Args parameters = {"--hidden-size", "2048", "--micro-batch-size", "1", "--bf16"};
  EXPECT_TRUE(advice_for(parameters, 8).front().starts_with("--use-distributed-optimizer: "));
  const Args few_layers = {"--hidden-size", "512",  "--micro-batch-size", "1", "--bf16",
                           "--vocab-size",  "10000"};
  const std::vector<std::string> sizes = advice_for(few_layers);
  EXPECT_TRUE(sizes.at(0).starts_with("--tensor-model-parallel-size 2: ")) << sizes.at(0);
  EXPECT_TRUE(sizes.at(1).starts_with("--pipeline-model-parallel-size 2: ")) << sizes.at(1);
}

/// What a family's own check allows is advised, whatever its settings are.
TEST(MemoryAdvice, FollowsTheChecksOfAFamily) {
  const Family own{.name = "own",
                   .check =
                       [](const Arguments& a, std::vector<Problem>& problems) {
                         if (a.tensor_model_parallel_size > 2)
                           problems.push_back({"it has two parts", "--tensor-model-parallel-size", "Use 2"});
                       },
                   .plan =
                       [](Arguments a, int64_t vocabulary) {
                         a.num_attention_heads = 8;
                         a.ffn_hidden_size = 2048;
                         return find_family("gpt").plan(a, vocabulary);
                       }};
  Arguments args = validated({"--hidden-size", "512", "--micro-batch-size", "1", "--bf16"}).args;
  args.num_attention_heads.reset();
  args.ffn_hidden_size.reset();
  const auto advises = [&](const std::string& flags) {
    return std::ranges::any_of(memory_advice(own, args),
                               [&](const std::string& line) { return line.starts_with(flags + ": "); });
  };
  EXPECT_TRUE(advises("--tensor-model-parallel-size 2"));
  args.tensor_model_parallel_size = 2;
  EXPECT_FALSE(advises("--tensor-model-parallel-size 4"));
  EXPECT_TRUE(advises("--pipeline-model-parallel-size 2"));
}

/// A larger size that validation refuses is not advised, here for settings other than sizes of the model.
TEST(MemoryAdvice, FollowsTheRulesOfSettings) {
  const auto advises_tensor_parallel = [](const Args& more, int64_t ranks) {
    Args flags = {"--hidden-size", "512", "--micro-batch-size", "1", "--bf16", "--vocab-size", "10000"};
    flags.insert(flags.end(), more.begin(), more.end());
    return std::ranges::any_of(advice_for(flags, ranks), [](const std::string& line) {
      return line.starts_with("--tensor-model-parallel-size");
    });
  };
  EXPECT_TRUE(advises_tensor_parallel({"--padded-vocab-size", "10002"}, 1));
  EXPECT_FALSE(advises_tensor_parallel({"--padded-vocab-size", "10001"}, 1));
  const auto with_length = [](const std::string& length) {
    return Args{"--tp", "2", "--sequence-parallel", "--seq-length", length, "--position-embedding-type",
                "rope"};
  };
  EXPECT_TRUE(advises_tensor_parallel(with_length("32"), 2));
  EXPECT_FALSE(advises_tensor_parallel(with_length("30"), 2));
}

// The number of GiB in the text is that of a run with the flags.
TEST(MemoryAdvice, StatesItsEffect) {
  const Args flags = {"--micro-batch-size", "64", "--vocab-size", "50000"};
  for (const std::string& line : advice_for(flags)) {
    Args changed = flags;
    std::string given = line.substr(0, line.find(": "));
    given = given.substr(0, given.find(" (now"));
    const Args more = split(given);
    changed.insert(changed.end(), more.begin(), more.end());
    const Arguments args = validated(changed, given.find("parallel-size") != given.npos ? 2 : 1).args;
    const double peak =
        largest_rank_memory(args, find_family("gpt").plan(args, planned_vocabulary(args))).peak();
    EXPECT_NE(line.find(fmt::format(": {:.2f} instead of ", peak / gib)), std::string::npos) << line;
  }
}

TEST(MemoryAdvice, LeavesOutWhatIsDoneAlready) {
  const Args flags = {"--bf16",
                      "--use-distributed-optimizer",
                      "--micro-batch-size",
                      "1",
                      "--loss-chunks",
                      "8",
                      "--recompute-granularity",
                      "full",
                      "--recompute-method",
                      "uniform",
                      "--recompute-num-layers",
                      "1",
                      "--tensor-model-parallel-size",
                      "2",
                      "--sequence-parallel"};
  for (const std::string& line : advice_for(flags, 4)) {
    EXPECT_TRUE(line.starts_with("--tensor-model-parallel-size 4") ||
                line.starts_with("--pipeline-model-parallel-size 2"))
        << line;
  }
}

TEST(MemoryAdvice, ExplainsFaultsOfMemory) {
  const Fault fault = explain_out_of_memory(Fault("full", ExitCode::out_of_memory), find_family("gpt"),
                                            validated({"--micro-batch-size", "64"}).args, 0);
  EXPECT_EQ(fault.exit_code(), ExitCode::out_of_memory);
  const std::string text = fault.what();
  EXPECT_TRUE(text.starts_with("full\nMemory of a rank in pipeline stage 0")) << text;
  EXPECT_NE(text.find("\n  --"), std::string::npos) << text;
}

TEST(MemoryAdvice, NamesAnAbsurdSize) {
  const auto text = [](const Args& flags) {
    return std::string(explain_out_of_memory(Fault("full", ExitCode::out_of_memory), find_family("gpt"),
                                             validated(flags).args, 0)
                           .what());
  };
  EXPECT_TRUE(text({"--max-position-embeddings", "80000000000"})
                  .starts_with(
                      "full\nmax_position_embeddings = 80000000000 is far above that of any published model: "
                      "check --max-position-embeddings\nMemory of a rank"));
  const std::string hidden = text({"--hidden-size", "1000000", "--num-attention-heads", "8"});
  EXPECT_NE(hidden.find("check --hidden-size\nMemory"), std::string::npos)
      << "what follows from it is not blamed: " << hidden;
  EXPECT_EQ(text({}).find("published"), std::string::npos);
}

}  // namespace
}  // namespace teratron
