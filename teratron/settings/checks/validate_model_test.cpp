// Invalid model sizes and rank layouts.
#include <gtest/gtest.h>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

// clang-format off
const BadCombination bad_models[] = {
    {"--hidden-size 65", 1, "--hidden-size", "65 is not divisible by num_attention_heads = 8", "64 or 72"},
    {"--tp 3", 3,
     "--num-attention-heads", "8 is not divisible by tensor_model_parallel_size = 3", "tensor_model_parallel_size = "
      "one of 1, 2, 4, 8"},
    {"--ffn-hidden-size 99 --tp 2", 2, "--ffn-hidden-size", "99 is not divisible", "98 or 100"},
    {"--gqa --num-query-groups 3", 1, "--num-attention-heads", "num_query_groups = 3", "6 or 9"},
    {"--num-attention-heads 12 --hidden-size 96 --gqa --num-query-groups 3 --tp 2", 2,
     "--num-query-groups", "3 is not divisible by tensor_model_parallel_size = 2", "2 or 4"},
    {"--seq-length 64 --max-position-embeddings 32", 1,
     "--seq-length", "must be at most max_position_embeddings = 32", "at most 32"},
    {"--encoder-seq-length 16", 1, "--encoder-seq-length", "encoder_seq_length = 16 must be equal to seq_length = 32", "equal to 32"},
    {"--no-position-embedding --position-embedding-type absolute", 1, "--no-position-embedding",
     "and --position-embedding-type learned_absolute are mutually exclusive", "one"},
    {"--position-embedding-type rope --rotary-percent 0.1", 1, "--rotary-percent", "rotates 0 channels", "even"},
    {"--swiglu --squared-relu", 1, "--swiglu", "--swiglu and --squared-relu are mutually exclusive", "one"},
    {"--hidden-dropout 1", 1, "--hidden-dropout", "out of range"},
    {"--attention-dropout 1", 1, "--attention-dropout", "out of range"},
    {"--hidden-size 9223372036854775807", 1, "--hidden-size", "too large"},
    {"--attention-head-type multiquery --gqa --num-query-groups 2", 1,
     "--attention-head-type", "multiquery and --num-query-groups 2 are mutually exclusive", "one"},
    {"--attention-head-type multihead --gqa --num-query-groups 2", 1,
     "--num-query-groups", "num_query_groups = 2 must be equal to num_attention_heads = 8", "equal to 8"},
    {"--padded-vocab-size 101 --tp 2", 2, "--padded-vocab-size", "not divisible", "100 or 102"},
};
// clang-format on

TEST(BadModel, IsRejected) {
  for (const BadCombination& row : bad_models) expect_rejected(row);
}

// clang-format off
const BadCombination bad_layouts[] = {
    {"--tp 4", 6,
     "--tp", "tensor 4 x pipeline 1 x context 1 needs a multiple of 4 ranks, and there are 6", "Start 4 or 8 "
      "with `teratron launch --nproc-per-node 8 -- ...` on one machine, or choose sizes whose product is one of 1, "
      "2, 3, 6"},
    {"--tp 4611686018427387904 --pp 4", 4, "--tp", "too many"},
    {"--pp 3", 3, "--num-layers", "4 is not divisible by pipeline_model_parallel_size = 3", "3 or 6"},
    {"--tp 2 --sp --seq-length 31", 2, "--seq-length", "not divisible by tensor", "30 or 32"},
    {"--cp 2 --seq-length 30", 2, "--seq-length", "2 * context_parallel_size = 4", "28 or 32, or context_parallel_size = one of 1, 3, 5, 15"},
    {"--cp 2 --seq-length 31", 2, "--seq-length", "31 is not divisible by 2 * context_parallel_size = 4", "28 or 32"},
    {"--num-layers-per-virtual-pipeline-stage 1", 1, "--pipeline-model-parallel-size", "interleaved schedule needs"},
    {"--pp 2 --vpp 2 --num-layers-per-virtual-pipeline-stage 1", 2, "--vpp", "both set"},
    {"--pp 2 --vpp 3", 2, "--vpp", "2 layers of a pipeline stage", "1, 2"},
    {"--pp 2 --decoder-first-pipeline-num-layers 5", 2, "--num-layers", "-1 layers for 1 stages"},
    {"--pp 2 --pipeline-model-parallel-layout Ettt|tL --vpp 2", 2,
     "--pipeline-model-parallel-layout", "both set", "one"},
    {"--pp 2 --pipeline-model-parallel-layout Ettt|L", 2,
     "--pipeline-model-parallel-layout", "3 layers and num_layers = 4", "t"},
    {"--pp 4 --account-for-embedding-in-pipeline-split", 4, "--num-layers", "4 + 1 is not divisible", "3 or 7"},
    {"--pp 2 --vpp 2 --no-overlap-p2p-communication --num-micro-batches 2", 2,
     "--no-overlap-p2p-communication", "needs pipeline_model_parallel_size > 2", "out"},
    {"--pp 2 --vpp 2 --global-batch-size 6", 2, "--global-batch-size", "the last group holds 1", "multiple of 2"},
    {"--pp 2 --vpp 2 --global-batch-size 16 --rampup-batch-size 4 6 100", 2,
     "--rampup-batch-size", "impossible at a global batch size of 10: of 5 micro-batches in groups of 2 the last "
      "group holds 1", "multiples of 4 samples, 2 micro-batches"},
    {"--pp 2 --vpp 2 --num-micro-batches 4 --microbatch-group-size-per-virtual-pipeline-stage 1", 2,
     "--microbatch-group-size-per-virtual-pipeline-stage", "smaller than the pipeline"},
    {"--overlap-param-gather", 1, "--overlap-param-gather", "needs --use-distributed-optimizer"},
};
// clang-format on

TEST(BadModel, LayoutIsRejected) {
  for (const BadCombination& row : bad_layouts) expect_rejected(row);
}

// clang-format off
const BadCombination bad_experts[] = {
    {"--ep 2", 2, "--ep", "needs --num-experts", "--num-experts"},
    {"--num-experts 6 --ep 4", 4, "--num-experts", "6 is not divisible", "4 or 8"},
    {"--num-experts 1", 1, "--num-experts", "moe_router_topk = 2 must be at most num_experts = 1", "at most 1"},
    {"--num-experts 2 --moe-router-topk 3", 1, "--moe-router-topk", "= 3", "change num_experts"},
    {"--num-experts 4 --moe-router-topk 1", 1,
     "--moe-router-topk", "always 1, without a gradient", "--moe-router-pre-softmax"},
    {"--num-experts 4 --moe-router-enable-expert-bias", 1,
     "--moe-router-enable-expert-bias", "needs --moe-router-score-function sigmoid|sqrtsoftplus", "--moe-router-score-function sigmoid"},
    {"--num-experts 4 --moe-router-num-groups 2", 1, "--moe-router-group-topk", "--moe-router-num-groups needs", "Give"},
    {"--num-experts 6 --moe-router-num-groups 4 --moe-router-group-topk 2", 1,
     "--num-experts", "6 is not divisible by moe_router_num_groups = 4", "4 or 8"},
    {"--num-experts 8 --moe-router-topk 6 --moe-router-num-groups 4 --moe-router-group-topk 2", 1,
     "--moe-router-topk", "6 must be at most num_experts / moe_router_num_groups * moe_router_group_topk = 4", "at most 4"},
    {"--num-experts 4 --moe-layer-freq [0]*3", 1,
     "--moe-layer-freq", "neither a number above 0 nor a list", "[0,1,1]"},
    {"--num-experts 4 --moe-layer-freq 0", 1, "--moe-layer-freq", "neither"},
    {"--num-experts 4 --moe-expert-capacity-factor 0", 1,
     "--moe-expert-capacity-factor", "drops every token", "above 0"},
    {"--num-experts 4 --moe-pad-expert-input-to-capacity", 1,
     "--moe-pad-expert-input-to-capacity", "no capacity", "--moe-expert-capacity-factor"},
    {"--num-experts 4 --moe-router-load-balancing-type sinkhorn --moe-aux-loss-coeff 0.1", 1,
     "--moe-aux-loss-coeff",
     "--moe-aux-loss-coeff 0.1 and --moe-router-load-balancing-type sinkhorn are mutually exclusive", "one"},
    {"--num-experts 4 --moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.1", 1,
     "--moe-aux-loss-coeff", "1 coefficients for 2 types", "one for each"},
    {"--num-experts 4 --tp 2 --etp 1", 2, "--etp", "must be equal to tensor_model_parallel_size = 2. Tensor-parallel ranks have the same tokens "
     "unless you add --sequence-parallel"},
    {"--moe-shared-expert-gate", 1, "--moe-shared-expert-gate", "needs"},
    {"--moe-shared-expert-overlap", 1, "--moe-shared-expert-overlap", "needs"},
    {"--etp 2", 2, "--etp", "needs --num-experts"},
    {"--num-experts 8 --moe-router-topk 6 --moe-router-num-groups 2 --moe-router-group-topk 3", 1,
     "--moe-router-group-topk", "must be at most moe_router_num_groups = 2", "at most 2"},
    {"--num-experts 8 --moe-router-topk 3 --moe-router-num-groups 4 --moe-router-group-topk 2", 1,
     "--moe-router-topk", "3 is not divisible by moe_router_group_topk = 2"},
    {"--num-experts 4 --moe-router-score-function sigmoid --moe-router-pre-softmax", 1,
     "--moe-router-pre-softmax", "needs --moe-router-score-function softmax", "Add"},
    {"--num-experts 4 --moe-router-load-balancing-type none aux_loss", 1,
     "--moe-router-load-balancing-type", "'none' is not combined", "alone"},
    {"--num-experts 4 --moe-router-load-balancing-type none --moe-aux-loss-coeff 0.1", 1,
     "--moe-aux-loss-coeff", "and --moe-router-load-balancing-type none are mutually exclusive", "one"},
    {"--num-experts 4 --moe-router-load-balancing-type aux_loss aux_loss", 1,
     "--moe-router-load-balancing-type", "'aux_loss' is given twice", "once"},
    {"--num-experts 4 --moe-router-load-balancing-type sinkhorn --moe-router-score-function sigmoid", 1,
     "--moe-router-load-balancing-type", "and --moe-router-score-function sigmoid are mutually exclusive. Sinkhorn chooses", "one"},
    {"--num-experts 4 --moe-router-load-balancing-type sinkhorn --moe-router-topk-scaling-factor 2", 1,
     "--moe-router-load-balancing-type", "and --moe-router-topk-scaling-factor are mutually exclusive", "one"},
    {"--num-experts 4 --moe-router-load-balancing-type sinkhorn --moe-router-pre-softmax", 1,
     "--moe-router-load-balancing-type", "and --moe-router-pre-softmax are mutually exclusive", "one"},
    {"--num-experts 4 --moe-ffn-hidden-size 30 --etp 4 --ep 1 --tp 4 --sequence-parallel", 4,
     "--moe-ffn-hidden-size", "30 is not divisible by expert_tensor_parallel_size = 4", "28 or 32"},
    {"--num-experts 4 --moe-ffn-hidden-size 30 --tp 4 --sequence-parallel", 4,
     "--moe-ffn-hidden-size", "30 is not divisible by tensor_model_parallel_size = 4", "28 or 32"},
    {"--num-experts 4 --moe-shared-expert-intermediate-size 15 --tp 2", 2,
     "--moe-shared-expert-intermediate-size", "15 is not divisible by tensor_model_parallel_size = 2"},
    {"--num-experts 4 --moe-layer-freq [0]*4", 1, "--moe-layer-freq", "gives no layer experts", "Set a layer to 1"},
    {"--num-experts 4 --moe-layer-recompute --recompute-granularity full", 1,
     "--moe-layer-recompute", "Whole layers are recomputed"},
    {"--num-experts 8 --ep 4 --tp 2", 4, "--ep", "expert tensor 2 x expert 4", "1, 2, 4"},
};
// clang-format on

TEST(BadModel, ACapacityOfZeroIsRejectedOnce) {
  try {
    validated(
        {"--num-experts", "4", "--moe-expert-capacity-factor", "0", "--moe-pad-expert-input-to-capacity"});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    ASSERT_EQ(error.problems().size(), 1u) << error.what();
    EXPECT_EQ(error.problems()[0].where, "--moe-expert-capacity-factor");
  }
}

TEST(BadModel, ExpertsAreRejected) {
  for (const BadCombination& row : bad_experts) expect_rejected(row);
}

}  // namespace
}  // namespace teratron
