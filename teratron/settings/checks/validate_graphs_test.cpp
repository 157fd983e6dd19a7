// Requirements of --cuda-graph-impl.
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

// clang-format off
const BadCombination bad_graphs[] = {
    {"--device cpu", 1,
     "--cuda-graph-impl", "--cuda-graph-impl local and --device cpu are mutually exclusive", "Set only one of them"},
    {"--tensor-model-parallel-size 2", 2,
     "--cuda-graph-impl", "needs --tensor-model-parallel-size 1", "--tensor-model-parallel-size 1"},
    {"--cpu-offloading-num-layers 1", 1,
     "--cuda-graph-impl", "--cuda-graph-impl local and --cpu-offloading-num-layers are mutually exclusive", "Set "
      "only one of them"},
    {"--pipeline-model-parallel-size 2", 2,
     "--cuda-graph-impl", "needs --pipeline-model-parallel-size 1", "--pipeline-model-parallel-size 1"},
};
// clang-format on

TEST(BadGraphs, AreRejected) {
  for (const BadCombination& row : bad_graphs) expect_rejected(row, {"--cuda-graph-impl", "local"});
}

// clang-format off
const BadCombination bad_expert_graphs[] = {
    {"--num-experts 4", 1,
     "--cuda-graph-impl", "GEMMs of experts in fp32 and fp16 wait for the device", "Add --bf16"},
    {"--num-experts 4 --fp16", 1,
     "--cuda-graph-impl", "GEMMs of experts in fp32 and fp16 wait for the device", "Add --bf16"},
    {"--num-experts 4 --bf16 --ep 2", 2,
     "--ep", "communication between the ranks of the experts is not captured", "Leave --cuda-graph-impl out"},
    {"--num-experts 4 --bf16 --etp 2", 2,
     "--etp", "communication between the ranks of an expert is not captured", "Leave --cuda-graph-impl out"},
    {"--num-experts 4 --bf16 --moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.1", 2,
     "--moe-router-load-balancing-type", "global_aux_loss counts the tokens of all data-parallel ranks", "Use "
      "aux_loss"},
    {"--num-experts 4 --bf16 --moe-router-load-balancing-type sinkhorn", 1,
     "--moe-router-load-balancing-type", "sinkhorn waits for the device", "Use another type"},
};
// clang-format on

TEST(BadGraphs, OfExpertsAreRejected) {
  for (const BadCombination& row : bad_expert_graphs) expect_rejected(row, {"--cuda-graph-impl", "local"});
}

TEST(Graphs, WorkWithExpertsOfOneRank) {
  const Args experts = {"--num-experts", "4", "--bf16", "--cuda-graph-impl", "local"};
  const auto with = [&](const Args& more) {
    Args args = experts;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  EXPECT_NO_THROW(validated(
      with({"--moe-router-load-balancing-type", "global_aux_loss", "--moe-aux-loss-coeff", "0.1"})));
  EXPECT_NO_THROW(validated(with({"--moe-router-load-balancing-type", "global_aux_loss"}), 2));
  EXPECT_NO_THROW(validated(with({"--moe-expert-capacity-factor", "1.5"}), 4));
}

TEST(Graphs, ChooseThemselvesByDefault) {
  const ParsedArguments parsed = validated({});
  EXPECT_EQ(parsed.args.cuda_graph_impl, "auto");
  EXPECT_EQ(parsed.args.cuda_graph_warmup_steps, 3);
}

TEST(Graphs, HaveAnAlias) {
  EXPECT_EQ(validated({"--enable-cuda-graph"}).args.cuda_graph_impl, "local");
}

TEST(Graphs, WorkWithDataParallelism) {
  const ParsedArguments parsed = validated({"--enable-cuda-graph", "--use-distributed-optimizer"}, 4);
  EXPECT_EQ(parsed.args.cuda_graph_impl, "local");
}

TEST(Graphs, GiveNoticesOfFlagsWithoutEffect) {
  EXPECT_TRUE(noted(validated({"--cuda-graph-impl", "none", "--cuda-graph-warmup-steps", "5"}),
                    "--cuda-graph-warmup-steps has no effect with --cuda-graph-impl none"));
  EXPECT_FALSE(noted(validated({"--cuda-graph-warmup-steps", "5"}), "warmup"));
  const Args parallel = {"--tensor-model-parallel-size", "2"};
  EXPECT_FALSE(noted(validated(parallel, 2), "cuda-graph"));
  EXPECT_TRUE(noted(validated({"--cuda-graph-impl", "auto", "--tensor-model-parallel-size", "2"}, 2),
                    "--cuda-graph-impl auto has no effect with tensor or pipeline parallelism"));
  EXPECT_TRUE(noted(validated({"--cuda-graph-impl", "auto", "--num-experts", "4"}),
                    "--cuda-graph-impl auto has no effect: GEMMs of experts in fp32 and fp16 wait"));
  EXPECT_FALSE(noted(validated({"--num-experts", "4"}), "cuda-graph"));
  EXPECT_FALSE(
      noted(validated({"--cuda-graph-impl", "auto", "--num-experts", "4", "--bf16"}), "no effect: "));
  EXPECT_FALSE(noted(validated({"--enable-cuda-graph", "--cuda-graph-warmup-steps", "5"}), "warmup"));
  EXPECT_TRUE(noted(validated({"--enable-cuda-graph", "--timing-log-level", "2"}), "forward-compute"));
  const Args overlap = {"--enable-cuda-graph", "--use-distributed-optimizer", "--overlap-param-gather"};
  EXPECT_TRUE(
      noted(validated(overlap, 2), "--overlap-param-gather has no effect once micro-batches are replayed"));
  EXPECT_FALSE(noted(validated(overlap, 1), "once micro-batches are replayed"));
}

std::string rejection(const Args& more) {
  Args args = small;
  args.insert(args.end(), more.begin(), more.end());
  try {
    parse_arguments(gpt_training, args);
    return "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    return error.what();
  }
}

TEST(Graphs, OtherImplementationsAreRejected) {
  for (const std::string kind : {"full_iteration", "transformer_engine"}) {
    EXPECT_NE(rejection({"--cuda-graph-impl", kind})
                  .find("cuda_graph_impl = " + kind + " is not supported yet. Use one of auto, none, local"),
              std::string::npos);
  }
  EXPECT_NE(
      rejection({"--enable-cuda-graph", "--cuda-graph-warmup-steps", "0"}).find("cuda_graph_warmup_steps"),
      std::string::npos);
}

}  // namespace
}  // namespace teratron
