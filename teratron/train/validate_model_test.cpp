// Sizes of the model and layouts of ranks that cannot be.
#include <gtest/gtest.h>

#include "teratron/train/validate_test.h"

namespace teratron {
namespace {

class BadModelTest : public testing::TestWithParam<BadCombination> {};

TEST_P(BadModelTest, IsRefused) {
  expect_refused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Model, BadModelTest,
    testing::Values(
        BadCombination{{"--hidden-size", "65"},
                       1,
                       "--hidden-size",
                       "65 is not divisible by num_attention_heads = 8",
                       "64 or 72"},
        BadCombination{{"--tp", "3"},
                       3,
                       "--num-attention-heads",
                       "8 is not divisible by tensor_model_parallel_size = 3",
                       "tensor_model_parallel_size = one of 1, 2, 4, 8"},
        BadCombination{{"--ffn-hidden-size", "99", "--tp", "2"},
                       2,
                       "--ffn-hidden-size",
                       "99 is not divisible",
                       "98 or 100"},
        BadCombination{{"--gqa", "--num-query-groups", "3"},
                       1,
                       "--num-attention-heads",
                       "num_query_groups = 3",
                       "6 or 9"},
        BadCombination{{"--gqa", "--num-query-groups", "2", "--tp", "4"},
                       4,
                       "--num-query-groups",
                       "not divisible by tensor",
                       "4"},
        BadCombination{{"--seq-length", "64", "--max-position-embeddings", "32"},
                       1,
                       "--seq-length",
                       "longer than max_position_embeddings = 32",
                       "<= 32"},
        BadCombination{{"--encoder-seq-length", "16"}, 1, "--encoder-seq-length", "differ", "one"},
        BadCombination{{"--no-position-embedding", "--position-embedding-type", "absolute"},
                       1,
                       "--no-position-embedding",
                       "contradicts",
                       ""},
        BadCombination{{"--position-embedding-type", "rope", "--rotary-percent", "0.1"},
                       1,
                       "--rotary-percent",
                       "rotates 0 channels",
                       "even"},
        BadCombination{{"--swiglu", "--squared-relu"}, 1, "--swiglu", "more than one", ""},
        BadCombination{{"--hidden-dropout", "1"}, 1, "--hidden-dropout", "drops everything", ""},
        BadCombination{{"--attention-dropout", "1"}, 1, "--attention-dropout", "drops everything", ""},
        BadCombination{{"--hidden-size", "9223372036854775807"}, 1, "--hidden-size", "too large", ""},
        BadCombination{{"--attention-head-type", "multiquery", "--gqa", "--num-query-groups", "2"},
                       1,
                       "--attention-head-type",
                       "contradicts num_query_groups = 2",
                       ""},
        BadCombination{{"--padded-vocab-size", "101", "--tp", "2"},
                       2,
                       "--padded-vocab-size",
                       "not divisible",
                       "100 or 102"}));

INSTANTIATE_TEST_SUITE_P(
    Layout, BadModelTest,
    testing::Values(
        BadCombination{{"--tp", "4"},
                       6,
                       "--tp",
                       "6 ranks cannot be divided into replicas of tensor 4 x pipeline 1 x context 1",
                       "Start 4 or 8 ranks, or choose sizes whose product is one of 1, 2, 3, 6"},
        BadCombination{{"--tp", "4611686018427387904", "--pp", "4"}, 4, "--tp", "too many", ""},
        BadCombination{{"--pp", "3"},
                       3,
                       "--num-layers",
                       "4 is not divisible by pipeline_model_parallel_size = 3",
                       "3 or 6"},
        BadCombination{{"--tp", "2", "--sp", "--seq-length", "31"},
                       2,
                       "--seq-length",
                       "not divisible by tensor",
                       "30 or 32"},
        BadCombination{{"--cp", "2", "--seq-length", "30"},
                       2,
                       "--seq-length",
                       "2 * context_parallel_size = 4",
                       "28 or 32"},
        BadCombination{{"--num-layers-per-virtual-pipeline-stage", "1"},
                       1,
                       "--pipeline-model-parallel-size",
                       "interleaved schedule needs",
                       ""},
        BadCombination{{"--pp", "2", "--vpp", "2", "--num-layers-per-virtual-pipeline-stage", "1"},
                       2,
                       "--vpp",
                       "both set",
                       ""},
        BadCombination{{"--pp", "2", "--vpp", "3"}, 2, "--vpp", "2 layers of a pipeline stage", "1, 2"},
        BadCombination{{"--pp", "2", "--decoder-first-pipeline-num-layers", "5"},
                       2,
                       "--num-layers",
                       "-1 layers for 1 stages",
                       ""},
        BadCombination{
            {"--overlap-param-gather"}, 1, "--overlap-param-gather", "needs overlap_grad_reduce", ""}));

INSTANTIATE_TEST_SUITE_P(
    Experts, BadModelTest,
    testing::Values(
        BadCombination{{"--ep", "2"}, 2, "--ep", "without experts", "--num-experts"},
        BadCombination{
            {"--num-experts", "6", "--ep", "4"}, 4, "--num-experts", "6 is not divisible", "4 or 8"},
        BadCombination{{"--num-experts", "1"}, 1, "--moe-router-topk", "above num_experts", "at most 1"},
        BadCombination{{"--num-experts", "8", "--ep", "4", "--tp", "2"},
                       4,
                       "--ep",
                       "expert tensor 2 x expert 4",
                       "1, 2, 4"}));

}  // namespace
}  // namespace teratron
