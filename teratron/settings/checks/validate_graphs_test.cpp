// What --cuda-graph-impl asks of a configuration.
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

bool noted(const ParsedArguments& parsed, const std::string& text) {
  return std::any_of(parsed.notices.begin(), parsed.notices.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

class BadGraphs : public testing::TestWithParam<BadCombination> {};

TEST_P(BadGraphs, AreRefused) {
  BadCombination bad = GetParam();
  bad.args.insert(bad.args.begin(), {"--cuda-graph-impl", "local"});
  expect_refused(bad);
}

INSTANTIATE_TEST_SUITE_P(All, BadGraphs,
                         testing::Values(BadCombination{{"--device", "cpu"},
                                                        1,
                                                        "--cuda-graph-impl",
                                                        "captures what a GPU does, but device = cpu",
                                                        "Leave it out, or train on a GPU"},
                                         BadCombination{{"--tensor-model-parallel-size", "2"},
                                                        2,
                                                        "--cuda-graph-impl",
                                                        "by itself, but tensor_model_parallel_size = 2",
                                                        "--tensor-model-parallel-size 1"},
                                         BadCombination{{"--pipeline-model-parallel-size", "2"},
                                                        2,
                                                        "--cuda-graph-impl",
                                                        "by itself, but pipeline_model_parallel_size = 2",
                                                        "--pipeline-model-parallel-size 1"}));

TEST(Graphs, AreOff) {
  const ParsedArguments parsed = finished({});
  EXPECT_EQ(parsed.args.cuda_graph_impl, "none");
  EXPECT_EQ(parsed.args.cuda_graph_warmup_steps, 3);
}

TEST(Graphs, HaveAnOlderSpelling) {
  EXPECT_EQ(finished({"--enable-cuda-graph"}).args.cuda_graph_impl, "local");
}

TEST(Graphs, GoWithDataParallelism) {
  const ParsedArguments parsed = finished({"--enable-cuda-graph", "--use-distributed-optimizer"}, 4);
  EXPECT_EQ(parsed.args.cuda_graph_impl, "local");
}

TEST(Graphs, SayWhatHasNoEffect) {
  EXPECT_TRUE(noted(finished({"--cuda-graph-warmup-steps", "5"}),
                    "--cuda-graph-warmup-steps has no effect without --cuda-graph-impl local"));
  EXPECT_FALSE(noted(finished({"--enable-cuda-graph", "--cuda-graph-warmup-steps", "5"}), "warmup"));
  EXPECT_TRUE(noted(finished({"--enable-cuda-graph", "--timing-log-level", "2"}), "forward-compute"));
  const Texts overlap = {"--enable-cuda-graph", "--use-distributed-optimizer", "--overlap-param-gather"};
  EXPECT_TRUE(
      noted(finished(overlap, 2), "--overlap-param-gather has no effect once micro-batches are replayed"));
  EXPECT_FALSE(noted(finished(overlap, 1), "once micro-batches are replayed"));
}

std::string refusal(const Texts& more) {
  Texts args = small;
  args.insert(args.end(), more.begin(), more.end());
  try {
    parse_arguments("pretrain gpt", args);
    return "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    return error.what();
  }
}

TEST(Graphs, AreOfOneKind) {
  for (const std::string kind : {"full_iteration", "transformer_engine"}) {
    EXPECT_NE(refusal({"--cuda-graph-impl", kind})
                  .find("cuda_graph_impl = " + kind + " is not supported yet. Use one of none, local"),
              std::string::npos);
  }
  EXPECT_NE(
      refusal({"--enable-cuda-graph", "--cuda-graph-warmup-steps", "0"}).find("cuda_graph_warmup_steps"),
      std::string::npos);
}

}  // namespace
}  // namespace teratron
