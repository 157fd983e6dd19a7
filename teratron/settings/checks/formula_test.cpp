// Formulas and conditions of the rules.
#include "teratron/settings/checks/formula.h"

#include <limits>

#include <gtest/gtest.h>

#include "teratron/settings/checks/conditions.h"

namespace teratron {
namespace {

TEST(Formula, IsComputedFromLeftToRight) {
  Arguments args;
  args.seq_length = 60;
  args.context_parallel_size = 4;
  args.micro_batch_size = 3;
  EXPECT_EQ(evaluate("seq_length", args).value, 60);
  EXPECT_EQ(evaluate("seq_length / context_parallel_size * micro_batch_size", args).value, 45);
  EXPECT_EQ(evaluate("16", args).value, 16);
  const Formula twice = evaluate("2 * context_parallel_size", args);
  EXPECT_EQ(twice.value, 8);
  EXPECT_EQ(twice.factor, 2);
}

TEST(Formula, BlamesTheLastFactor) {
  const Arguments args;
  EXPECT_EQ(evaluate("num_attention_heads * kv_channels / tensor_model_parallel_size", args).blamed,
            "kv_channels");
  EXPECT_EQ(evaluate("seq_length / context_parallel_size", args).blamed, "seq_length");
}

TEST(Formula, HasNoValueIfASettingIsUnsetOrAQuotientIsNotWholeOrTooLarge) {
  Arguments args;
  EXPECT_FALSE(evaluate("seq_length", args).value);
  args.seq_length = 61;
  args.context_parallel_size = 2;
  EXPECT_FALSE(evaluate("seq_length / context_parallel_size", args).value);
  args.context_parallel_size = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(evaluate("2 * context_parallel_size", args).value);
}

TEST(Condition, LooksAtEachElementOfAList) {
  Arguments args;
  args.cp_comm_type = {"p2p", "a2a"};
  args.moe_aux_loss_coeff = {0.0, 0.5};
  EXPECT_EQ(find_held("--cp-comm-type all_gather|a2a", args, {})->flag, "--cp-comm-type a2a");
  EXPECT_EQ(find_held("--moe-aux-loss-coeff > 0", args, {})->flag, "--moe-aux-loss-coeff 0.5");
  EXPECT_FALSE(find_held("--moe-aux-loss-coeff > 0.5", args, {}));
}

TEST(Condition, AllClausesMustApply) {
  Arguments args;
  args.bf16 = true;
  args.tensor_model_parallel_size = 2;
  EXPECT_TRUE(applies("", args, {}));
  EXPECT_TRUE(
      applies("--bf16 and --tensor-model-parallel-size > 1 and without --fp16 or --swiglu", args, {}));
  EXPECT_FALSE(applies("--bf16 and without --fp16 or --tensor-model-parallel-size 2", args, {}));
  EXPECT_FALSE(applies("--swiglu and --bf16", args, {}));
}

}  // namespace
}  // namespace teratron
