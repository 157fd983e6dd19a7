// Options of a layer that cannot be honoured, those with nothing to act on, and what follows from others.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

class BadLayerTest : public testing::TestWithParam<BadCombination> {};

TEST_P(BadLayerTest, IsRefused) {
  expect_refused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Layers, BadLayerTest,
    testing::Values(
        BadCombination{{"--position-embedding-type", "rope", "--use-rope-scaling",
                        "--rotary-seq-len-interpolation-factor", "2"},
                       1,
                       "--use-rope-scaling",
                       "both set",
                       "one"},
        BadCombination{{"--attention-head-type", "multiquery", "--tp", "2"},
                       2,
                       "--num-query-groups",
                       "1 is not divisible by tensor_model_parallel_size = 2",
                       "2"},
        BadCombination{{"--loss-chunks", "65", "--seq-length", "64"},
                       1,
                       "--loss-chunks",
                       "a rank has 64 positions",
                       "at most 64"},
        BadCombination{{"--window-size", "8"}, 1, "--window-size", "no pair of numbers", "127,0"},
        BadCombination{{"--window-size", "-2,0"}, 1, "--window-size", "no pair of numbers", "-1 for all"},
        BadCombination{{"--window-size", "a,b"}, 1, "--window-size", "'a,b' is no pair", ""},
        BadCombination{{"--window-size", "8,0", "--window-attn-skip-freq", "[1,0]"},
                       1,
                       "--window-attn-skip-freq",
                       "nor a list of num_layers = 4",
                       "[1,1,0]"},
        BadCombination{{"--window-size", "8,0", "--window-attn-skip-freq", "0"},
                       1,
                       "--window-attn-skip-freq",
                       "neither a number above 0",
                       ""},
        BadCombination{{"--geglu", "--openai-gelu"}, 1, "--swiglu", "more than one of swiglu, geglu", ""},
        BadCombination{{"--recompute-activations", "--recompute-method", "block"},
                       1,
                       "--recompute-method",
                       "not selective",
                       ""},
        BadCombination{{"--distribute-saved-activations", "--recompute-granularity", "full"},
                       1,
                       "--distribute-saved-activations",
                       "and tensor parallelism",
                       "> 1"},
        BadCombination{{"--distribute-checkpointed-activations", "--tp", "2"},
                       2,
                       "--distribute-checkpointed-activations",
                       "needs recompute_granularity = full",
                       ""},
        BadCombination{{"--checkpoint-activations", "--distribute-saved-activations", "--tp", "2", "--sp"},
                       2,
                       "--distribute-saved-activations",
                       "contradicts sequence_parallel",
                       "one"},
        BadCombination{
            {"--checkpoint-activations", "--distribute-saved-activations", "--tp", "2", "--seq-length", "31"},
            2,
            "--seq-length",
            "not divisible by tensor",
            "30 or 32"},
        BadCombination{{"--fp16-lm-cross-entropy"}, 1, "--fp16-lm-cross-entropy", "needs fp16", "--fp16"}));

TEST(FinishLayers, FillsInWhatFullRecomputationNeeds) {
  const ParsedArguments p = finished({"--recompute-granularity", "full"});
  EXPECT_EQ(p.args.recompute_method, "uniform");
  EXPECT_EQ(p.args.recompute_num_layers, 1);
  const ParsedArguments old =
      finished({"--activations-checkpoint-method", "block", "--checkpoint-num-layers", "3"});
  EXPECT_EQ(old.args.recompute_granularity, "full");
  EXPECT_EQ(old.args.recompute_method, "block");
  EXPECT_EQ(old.args.recompute_num_layers, 3);
}

TEST(FinishLayers, GeluIsByErfWithoutTheFusion) {
  EXPECT_TRUE(finished({}).args.bias_gelu_fusion);
  EXPECT_FALSE(finished({"--no-bias-gelu-fusion"}).args.bias_gelu_fusion);
  EXPECT_FALSE(finished({"--disable-bias-linear"}).args.bias_gelu_fusion);
  EXPECT_TRUE(finished({"--disable-bias-linear", "--swiglu"}).args.bias_gelu_fusion);
}

TEST(FinishLayers, OptionsWithNothingToActOnAreNoted) {
  for (const Texts& args :
       {Texts{"--rotary-interleaved"}, Texts{"--use-rope-scaling"}, Texts{"--rope-scaling-factor", "2"},
        Texts{"--rotary-seq-len-interpolation-factor", "2"}, Texts{"--window-attn-skip-freq", "2"},
        Texts{"--recompute-num-layers", "2"}, Texts{"--recompute-method", "block"},
        Texts{"--fp32-residual-connection"}}) {
    const ParsedArguments p = finished(args);
    ASSERT_EQ(p.notices.size(), 1u) << args[0];
    EXPECT_TRUE(p.notices[0].starts_with(args[0] + " has no effect without")) << p.notices[0];
  }
}

TEST(FinishLayers, AnInertSwitchIsNotedAsItWasWritten) {
  EXPECT_EQ(finished({"--swiglu", "--no-bias-gelu-fusion"}).notices,
            Texts{"--no-bias-gelu-fusion has no effect on another activation than GELU"});
}

}  // namespace
}  // namespace teratron
