// Requirements of --fp8-format.
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

Args with_fp8(const Args& more) {
  Args all = {"--fp8-format", "hybrid"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// clang-format off
const BadCombination bad_fp8[] = {
    {"", 1, "--fp8-format", "--fp8-format needs --bf16", "Add --bf16"},
    {"--fp16", 1, "--fp8-format", "needs --bf16"},
    {"--bf16 --hidden-size 56", 1, "--hidden-size", "hidden_size = 56 is not a multiple of 16", "48 or 64"},
    {"--bf16 --ffn-hidden-size 72", 1, "--ffn-hidden-size", "= 72 is not a multiple of 16", "64 or 80"},
    {"--bf16 --ffn-hidden-size 48 --tp 2", 2, "--ffn-hidden-size", "tensor_model_parallel_size = 24", "16 or 32"},
    {"--bf16 --kv-channels 5", 1,
     "--kv-channels", "num_attention_heads * kv_channels / tensor_model_parallel_size = 40"},
    {"--bf16 --kv-channels 2 --gqa --num-query-groups 2", 1,
     "--kv-channels", "width of queries, keys and values / tensor_model_parallel_size = 24"},
    {"--bf16 --num-experts 4 --moe-ffn-hidden-size 72", 1,
     "--moe-ffn-hidden-size", "tensor_model_parallel_size = 72 is not a multiple of 16", "64 or 80"},
    {"--bf16 --num-experts 4 --moe-ffn-hidden-size 48 --tp 2", 2,
     "--moe-ffn-hidden-size", "moe_ffn_hidden_size / tensor_model_parallel_size = 24"},
    {"--bf16 --num-experts 4 --moe-ffn-hidden-size 48 --tp 2 --etp 2", 2,
     "--moe-ffn-hidden-size", "moe_ffn_hidden_size / expert_tensor_parallel_size = 24"},
    {"--bf16 --num-experts 4 --moe-shared-expert-intermediate-size 40", 1,
     "--moe-shared-expert-intermediate-size", "tensor_model_parallel_size = 40"},
    {"--bf16 --seq-length 24 --micro-batch-size 1", 1, "--micro-batch-size", "micro_batch_size = 24"},
    {"--bf16 --first-last-layers-bf16 --num-layers-at-start-in-bf16 3", 1,
     "--first-last-layers-bf16", "leave none of num_layers = 4", "fewer"},
    {"--bf16 --fp8-output-proj --make-vocab-size-divisible-by 40", 1,
     "--make-vocab-size-divisible-by", "make_vocab_size_divisible_by = 40 is not a multiple of 16", "32 or 48"},
    {"--bf16 --fp8-output-proj --padded-vocab-size 1008 --tp 2", 2,
     "--padded-vocab-size", "padded_vocab_size / tensor_model_parallel_size = 504", "496 or 512"},
    {"--bf16 --fp8-output-proj --seq-length 64 --micro-batch-size 1 --loss-chunks 8", 1,
     "--loss-chunks", "tokens per chunk of the loss = 8"},
    {"--bf16 --fp8-output-proj --seq-length 64 --micro-batch-size 4 --loss-chunks 5", 1,
     "--loss-chunks", "tokens per chunk of the loss = 52", "leave --fp8-output-proj out"},
};
// clang-format on

TEST(BadFp8, IsRefused) {
  for (const BadCombination& row : bad_fp8) expect_rejected(row, {"--fp8-format", "hybrid"});
}

// The width of experts follows from that of the MLP.
TEST(Fp8Settings, BlameTheWidthThatOthersFollowFromOnce) {
  const auto problems_of = [](const Args& flags) {
    try {
      validated(with_fp8(flags), 2);
    } catch (const UserError& error) {
      return error.problems();
    }
    return std::vector<Problem>();
  };
  const Args both = {"--bf16", "--num-experts", "4", "--ffn-hidden-size", "48", "--tp", "2", "--etp", "2"};
  const std::vector<Problem> problems = problems_of(both);
  ASSERT_EQ(problems.size(), 1u) << problems[1].what;
  EXPECT_EQ(problems[0].where, "--ffn-hidden-size");
  const Args experts = {"--bf16", "--num-experts", "4", "--ffn-hidden-size", "48", "--etp", "2"};
  const std::vector<Problem> alone = problems_of(experts);
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_TRUE(alone[0].what.starts_with("ffn_hidden_size / expert_tensor_parallel_size = 24"))
      << alone[0].what;
}

TEST(Fp8Settings, AreRejectedOnce) {
  const Args chunks = {
      "--bf16", "--fp8-output-proj", "--seq-length", "64", "--micro-batch-size", "1", "--loss-chunks", "8"};
  try {
    validated(with_fp8(chunks));
    FAIL();
  } catch (const UserError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("per chunk of the loss"), std::string::npos);
    EXPECT_EQ(what.find("per chunk of the loss"), what.rfind("per chunk of the loss"));
  }
}

TEST(Fp8Settings, AreAccepted) {
  const ParsedArguments parsed = validated(with_fp8({"--bf16", "--fp8-recipe", "tensorwise"}));
  EXPECT_EQ(parsed.args.fp8, "hybrid");
  EXPECT_EQ(parsed.args.fp8_recipe, "tensorwise");
  EXPECT_EQ(validated({"--bf16"}).args.fp8_recipe, "delayed");
  EXPECT_EQ(validated(with_fp8({"--bf16", "--num-experts", "4"})).args.fp8, "hybrid");
}

TEST(Fp8Settings, WithoutEffectGiveNotices) {
  for (const Args& args : {Args{"--fp8-margin", "1"},
                           {"--fp8-recipe", "tensorwise"},
                           {"--no-fp8-wgrad"},
                           {"--fp8-output-proj"},
                           {"--fp8-amax-history-len", "4"},
                           {"--fp8-amax-compute-algo", "max"},
                           {"--first-last-layers-bf16"},
                           {"--num-layers-at-end-in-bf16", "2"}}) {
    EXPECT_TRUE(noted(validated(args), "has no effect without --fp8-format")) << args[0];
  }
  for (const Args& args : {Args{"--fp8-margin", "1"}, {"--fp8-amax-history-len", "4"}}) {
    Args all = with_fp8({"--bf16", "--fp8-recipe", "tensorwise"});
    all.insert(all.end(), args.begin(), args.end());
    EXPECT_TRUE(noted(validated(all), "has no effect with --fp8-recipe tensorwise")) << args[0];
  }
  EXPECT_TRUE(noted(validated(with_fp8({"--bf16", "--num-layers-at-start-in-bf16", "2"})),
                    "has no effect without --first-last-layers-bf16"));
}

}  // namespace
}  // namespace teratron
