// Options of a layer: invalid values, flags without effect, and derived values.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

// clang-format off
const BadCombination bad_layers[] = {
    {"--position-embedding-type rope --use-rope-scaling --rotary-seq-len-interpolation-factor 2", 1,
     "--use-rope-scaling", "mutually exclusive", "one"},
    {"--position-embedding-type yarn --rotary-seq-len-interpolation-factor 2", 1,
     "--rotary-seq-len-interpolation-factor", "YaRN scales positions itself", "one"},
    {"--position-embedding-type yarn --yarn-beta-slow 40", 1,
     "--yarn-beta-slow", "must be less than yarn_beta_fast = 32", "change yarn_beta_fast"},
    {"--attention-head-type multiquery --cp 2 --cp-comm-type a2a", 2,
     "--num-query-groups", "1 is not divisible by context_parallel_size * tensor_model_parallel_size = 2", "2"},
    {"--loss-chunks 65 --seq-length 64", 1, "--loss-chunks",
     "loss_chunks = 65 must be at most seq_length / context_parallel_size = 64", "at most 64"},
    {"--cpu-offloading-num-layers 5", 1,
     "--cpu-offloading-num-layers", "cpu_offloading_num_layers = 5, but a stack of the model has at most 4 layers",
      "Use at most 4"},
    {"--cpu-offloading-num-layers 3 --pp 2", 2,
     "--cpu-offloading-num-layers", "a pipeline stage has at most 2 layers", "Use at most 2"},
    {"--cpu-offloading-num-layers 2 --pp 2 --vpp 2 --num-micro-batches 2", 2,
     "--cpu-offloading-num-layers", "a virtual pipeline stage has at most 1 layers", "Use at most 1"},
    {"--window-size 8", 1, "--window-size", "not a pair of numbers", "127,0"},
    {"--window-size -2,0", 1, "--window-size", "not a pair of numbers", "-1 for all"},
    {"--window-size a,b", 1, "--window-size", "'a,b' is not a pair"},
    {"--window-size 8,0 --window-attn-skip-freq [1,0]", 1,
     "--window-attn-skip-freq", "nor a list of num_layers = 4", "[1,1,0]"},
    {"--window-size 8,0 --window-attn-skip-freq 0", 1, "--window-attn-skip-freq", "neither a number above 0"},
    {"--relu --swiglu", 1, "--swiglu", "--swiglu and --relu are mutually exclusive", "one"},
    {"--norm-position output --parallel-residual", 1, "--norm-position", "mutually exclusive"},
    {"--parallel-residual --apply-residual-connection-post-layernorm", 1, "--parallel-residual", "mutually exclusive"},
    {"--qk-layernorm --qk-layernorm-all-heads", 1,
     "--qk-layernorm-all-heads", "must be an RMSNorm", "--normalization RMSNorm"},
    {"--geglu --openai-gelu", 1, "--geglu", "--geglu and --openai-gelu are mutually exclusive", "one"},
    {"--recompute-activations --recompute-method block", 1,
     "--recompute-method", "--recompute-granularity selective"},
    {"--distribute-saved-activations --recompute-granularity full", 1,
     "--distribute-saved-activations", "needs --tensor-model-parallel-size > 1", "> 1"},
    {"--distribute-checkpointed-activations --tp 2", 2,
     "--distribute-checkpointed-activations", "needs --recompute-granularity full"},
    {"--checkpoint-activations --distribute-saved-activations --tp 2 --sp", 2,
     "--distribute-saved-activations", "and --sequence-parallel are mutually exclusive", "one"},
    {"--checkpoint-activations --distribute-saved-activations --tp 2 --seq-length 31", 2,
     "--seq-length", "not divisible by tensor", "30 or 32"},
    {"--fp16-lm-cross-entropy", 1, "--fp16-lm-cross-entropy", "needs --fp16", "--fp16"},
};
// clang-format on

TEST(BadLayer, IsRejected) {
  for (const BadCombination& row : bad_layers) expect_rejected(row);
}

TEST(ValidateLayers, DerivesOptionsOfFullRecomputation) {
  const ParsedArguments p = validated({"--recompute-granularity", "full"});
  EXPECT_EQ(p.args.recompute_method, "uniform");
  EXPECT_EQ(p.args.recompute_num_layers, 1);
  const ParsedArguments old =
      validated({"--activations-checkpoint-method", "block", "--checkpoint-num-layers", "3"});
  EXPECT_EQ(old.args.recompute_granularity, "full");
  EXPECT_EQ(old.args.recompute_method, "block");
  EXPECT_EQ(old.args.recompute_num_layers, 3);
}

TEST(ValidateLayers, GeluUsesErfWithoutTheFusion) {
  EXPECT_TRUE(validated({}).args.bias_gelu_fusion);
  EXPECT_FALSE(validated({"--no-bias-gelu-fusion"}).args.bias_gelu_fusion);
  EXPECT_FALSE(validated({"--disable-bias-linear"}).args.bias_gelu_fusion);
  EXPECT_TRUE(validated({"--disable-bias-linear", "--swiglu"}).args.bias_gelu_fusion);
}

TEST(ValidateLayers, OptionsWithoutEffectGiveNotices) {
  for (const Args& args :
       {Args{"--rotary-interleaved"}, Args{"--use-rope-scaling"}, Args{"--rope-scaling-factor", "2"},
        Args{"--rotary-scaling-factor", "2"}, Args{"--mscale", "2"}, Args{"--yarn-beta-fast", "16"},
        Args{"--rotary-seq-len-interpolation-factor", "2"}, Args{"--window-attn-skip-freq", "2"},
        Args{"--recompute-num-layers", "2"}, Args{"--recompute-method", "block"},
        Args{"--fp32-residual-connection"}}) {
    const ParsedArguments p = validated(args);
    ASSERT_EQ(p.notices.size(), 1u) << args[0];
    EXPECT_TRUE(p.notices[0].starts_with(args[0] + " has no effect without")) << p.notices[0];
  }
}

TEST(ValidateLayers, YarnWithFactor1ScalesNothing) {
  const Args yarn = {"--position-embedding-type", "yarn", "--yarn-beta-fast", "16"};
  EXPECT_EQ(validated(yarn).notices, Args{"--yarn-beta-fast has no effect with --rotary-scaling-factor 1.0"});
  Args scaled = yarn;
  scaled.insert(scaled.end(), {"--rotary-scaling-factor", "2"});
  EXPECT_EQ(validated(scaled).notices, Args{});
}

TEST(ValidateLayers, NoticesNameTheNegativeFlag) {
  EXPECT_EQ(validated({"--swiglu", "--no-bias-gelu-fusion"}).notices,
            Args{"--no-bias-gelu-fusion has no effect with --swiglu"});
}

}  // namespace
}  // namespace teratron
