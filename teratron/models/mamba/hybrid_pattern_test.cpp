#include "teratron/models/mamba/hybrid_pattern.h"

#include <gtest/gtest.h>

#include "teratron/models/family.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

TEST(HybridPattern, RatiosAreThoseOfMegatron) {
  EXPECT_EQ(hybrid_layers(10, {}), "MMMMMMMMMM");
  EXPECT_EQ(hybrid_layers(10, {.attention = 0.1}), "MMMMM*MMMM");
  EXPECT_EQ(hybrid_layers(9, {.mlp = 0.3}), "MM-MM-MM-");
  EXPECT_EQ(hybrid_layers(8, {0.5, 0.5}), "-*-**-*-");
  EXPECT_EQ(hybrid_layers(24, {0.125, 0.25}), "MMM-M*M-MMM-*MM-MM*M-MM-");
  EXPECT_EQ(hybrid_layers(7, {.attention = 1.0}), "*******");
  EXPECT_EQ(hybrid_layers(52, {0.08, 0.46}), "M-M-M-M-M-*M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-*M-M-M-M-M-");
}

TEST(HybridPattern, BarsAreSegments) {
  const HybridPattern pattern = parse_hybrid_pattern("M-M*-||M|");
  EXPECT_EQ(pattern.layers, "M-M*-M");
  EXPECT_EQ(pattern.segments, (std::vector<int64_t>{5, 0, 1, 0}));
  EXPECT_TRUE(parse_hybrid_pattern("ME").segments.empty());
}

TEST(HybridPattern, UnknownLettersAreNamed) {
  const auto problem = [](const char* text) { return parse_hybrid_pattern(text).problems.at(0).what; };
  EXPECT_NE(problem("MX").find("'X'"), std::string::npos);
  EXPECT_NE(problem("MD").find("sparse attention"), std::string::npos);
  EXPECT_NE(problem("M/M").find("multi-token prediction"), std::string::npos);
  EXPECT_NE(problem("|").find("no layers"), std::string::npos);
}

const Args base = {"--hidden-size",         "32",
                   "--seq-length",          "16",
                   "--micro-batch-size",    "1",
                   "--mamba-head-dim",      "8",
                   "--mamba-num-groups",    "2",
                   "--num-attention-heads", "4",
                   "--tokenizer-type",      "NullTokenizer",
                   "--vocab-size",          "60"};

Arguments validated_hybrid(Args flags, int64_t ranks = 1) {
  flags.insert(flags.begin(), base.begin(), base.end());
  ParsedArguments parsed = parse_arguments(training_of(find_family("mamba")), flags);
  validate_arguments(parsed, ranks, {.needs_data = false});
  std::vector<Problem> problems;
  find_family("mamba").check(parsed.args, problems);
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
  return parsed.args;
}

TEST(HybridSettings, FollowFromThePattern) {
  const Arguments args = validated_hybrid({"--hybrid-override-pattern", "M-M*"});
  EXPECT_EQ(args.num_layers, 4);
  EXPECT_EQ(args.mamba_num_heads, 8);
  EXPECT_EQ(validated_hybrid({"--num-layers", "10", "--hybrid-attention-ratio", "0.1"}).hybrid_layer_pattern,
            "MMMMM*MMMM");
  const Arguments cut =
      validated_hybrid({"--hybrid-layer-pattern", "M-|M*|M|M", "--pp", "2", "--num-micro-batches", "2"}, 2);
  EXPECT_EQ(cut.hybrid_layer_pattern, "M-M*MM");
  EXPECT_EQ(cut.pipeline_model_parallel_layout, "Ett|tt|t|tL");
  EXPECT_EQ(validated_hybrid({"--hybrid-layer-pattern", "M-|M*"}).pipeline_model_parallel_layout,
            std::nullopt);
}

void expect_refused(const Args& flags, const std::string& fragment, int64_t ranks = 1) {
  try {
    validated_hybrid(flags, ranks);
    ADD_FAILURE() << fragment;
  } catch (const UserError& error) {
    EXPECT_EQ(error.problems().size(), 1U) << fragment;
    const Problem& problem = error.problems()[0];
    EXPECT_NE((problem.what + problem.where).find(fragment), std::string::npos) << problem.what;
    EXPECT_FALSE(problem.fix.empty());
  }
}

TEST(HybridSettings, BadOnesAreRefusedWithOneMessage) {
  expect_refused({"--hybrid-layer-pattern", "MQ"}, "'Q' in the pattern");
  expect_refused({"--hybrid-layer-pattern", "M*", "--num-layers", "3"}, "the pattern has 2 layers");
  expect_refused({"--hybrid-layer-pattern", "M|M|M", "--pp", "2"}, "3 segments", 2);
  expect_refused({"--hybrid-layer-pattern", "M|M", "--pp", "2", "--vpp", "2", "--num-micro-batches", "2"},
                 "2 segments", 2);
  expect_refused({"--hybrid-layer-pattern", "MMMM", "--hybrid-attention-ratio", "0.5"},
                 "hybrid_attention_ratio");
  expect_refused({"--hybrid-layer-pattern", "MM", "--mamba-num-heads", "5"}, "mamba_num_heads = 5");
  expect_refused({"--hybrid-layer-pattern", "MM", "--tp", "4"}, "mamba_num_groups = 2", 4);
  expect_refused({"--hybrid-layer-pattern", "ME"}, "--num-experts");
  expect_refused({"--hybrid-layer-pattern", "MM", "--num-experts", "2"}, "no layer with experts");
  expect_refused({"--hybrid-layer-pattern", "MM", "--cp", "3", "--seq-length", "12",
                  "--recurrent-cp-comm-type", "heads"},
                 "context_parallel_size = 3", 3);
}

}  // namespace
}  // namespace teratron
