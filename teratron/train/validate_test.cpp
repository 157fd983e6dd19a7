// finish(): derived values, and every check across fields.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/train/arguments.h"

namespace teratron {
namespace {

using Texts = std::vector<std::string>;

const Texts small = {"--num-layers",
                     "4",
                     "--hidden-size",
                     "64",
                     "--num-attention-heads",
                     "8",
                     "--seq-length",
                     "32",
                     "--micro-batch-size",
                     "2",
                     "--train-iters",
                     "10",
                     "--lr",
                     "1e-3",
                     "--mock-data",
                     "--tokenizer-type",
                     "NullTokenizer",
                     "--vocab-size",
                     "100"};

ParsedArguments finished(const Texts& more, int64_t world_size = 1) {
  Texts args = small;
  args.insert(args.end(), more.begin(), more.end());
  ParsedArguments parsed = parse_arguments("pretrain gpt", args, {.refuse_planned = false});
  finish(parsed, world_size);
  return parsed;
}

TEST(Finish, DerivesMegatronsDefaults) {
  const ParsedArguments p = finished({"--tp", "2"}, 8);
  EXPECT_EQ(p.args.ffn_hidden_size, 256);
  EXPECT_EQ(p.args.kv_channels, 8);
  EXPECT_EQ(p.args.max_position_embeddings, 32);
  EXPECT_EQ(p.args.encoder_seq_length, 32);
  EXPECT_EQ(p.args.data_parallel_size, 4);
  EXPECT_EQ(p.args.world_size, 8);
  EXPECT_EQ(p.args.global_batch_size, 8);
  EXPECT_EQ(p.args.num_micro_batches, 1);
  EXPECT_EQ(p.args.lr_decay_iters, 10);
  EXPECT_EQ(p.args.start_weight_decay, 0.01);
  EXPECT_EQ(p.args.end_weight_decay, 0.01);
  EXPECT_EQ(p.args.split, "969, 30, 1");
  EXPECT_EQ(p.args.dataloader_type, "single");
  EXPECT_EQ(p.sources.at("ffn_hidden_size"), "derived");
  EXPECT_EQ(query_groups(p.args), 8);
}

TEST(Finish, SwigluWidthIsAMultipleOf64) {
  for (const int64_t hidden : {64, 96, 768, 1000, 4096, 12288}) {
    const ParsedArguments p = finished({"--swiglu", "--hidden-size", std::to_string(hidden)});
    EXPECT_EQ(p.args.ffn_hidden_size,
              static_cast<int64_t>(4.0 * static_cast<double>(hidden) * 2 / 3 / 64) * 64);
  }
}

TEST(Finish, ChosenValuesStay) {
  const ParsedArguments p =
      finished({"--ffn-hidden-size", "100", "--kv-channels", "16", "--global-batch-size", "6",
                "--lr-decay-iters", "7", "--max-position-embeddings", "64", "--split", "8,1,1",
                "--sequence-parallel", "--num-query-groups", "2"});
  EXPECT_EQ(p.args.ffn_hidden_size, 100);
  EXPECT_EQ(p.args.kv_channels, 16);
  EXPECT_EQ(p.args.global_batch_size, 6);
  EXPECT_EQ(p.args.num_micro_batches, 3);
  EXPECT_EQ(p.args.lr_decay_iters, 7);
  EXPECT_EQ(p.args.max_position_embeddings, 64);
  EXPECT_EQ(p.args.split, "8,1,1");
  EXPECT_TRUE(p.args.sequence_parallel);
  ASSERT_EQ(p.notices.size(), 2u);
  EXPECT_EQ(p.notices[0], "--num-query-groups has no effect without --group-query-attention");
  EXPECT_EQ(p.notices[1], "--sequence-parallel has no effect at tensor_model_parallel_size 1");
}

TEST(Finish, PositionsFollowFromBothSpellings) {
  EXPECT_EQ(finished({"--no-position-embedding"}).args.position_embedding_type, "none");
  EXPECT_EQ(
      finished({"--no-position-embedding", "--use-rotary-position-embeddings"}).args.position_embedding_type,
      "rope");
}

TEST(Finish, MultiqueryIsOneGroup) {
  const ParsedArguments p = finished({"--attention-head-type", "multiquery"});
  EXPECT_TRUE(p.args.group_query_attention);
  EXPECT_EQ(query_groups(p.args), 1);
  EXPECT_EQ(query_groups(finished({"--attention-head-type", "multihead"}).args), 8);
}

TEST(Finish, PaddedVocabulary) {
  const Arguments tp2 = finished({"--tp", "2"}, 2).args;
  EXPECT_EQ(padded_vocab_size(tp2, 1), 256);
  EXPECT_EQ(padded_vocab_size(tp2, 50257), 50432);
  EXPECT_EQ(padded_vocab_size(finished({}).args, 50257), 50304);
  EXPECT_EQ(padded_vocab_size(finished({"--padded-vocab-size", "300"}).args, 300), 300);
  EXPECT_THROW(padded_vocab_size(finished({"--padded-vocab-size", "300"}).args, 301), UserError);
  EXPECT_THROW(
      padded_vocab_size(
          finished({"--make-vocab-size-divisible-by", "9223372036854775807", "--tp", "2"}, 2).args, 5),
      UserError);
}

struct BadCombination {
  Texts args;
  int64_t world_size;
  const char* where;
  const char* what;
  const char* fix;
};

class BadCombinationTest : public testing::TestWithParam<BadCombination> {};

TEST_P(BadCombinationTest, IsAmongTheProblems) {
  const BadCombination& bad = GetParam();
  try {
    finished(bad.args, bad.world_size);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    bool found = false;
    for (const Problem& p : error.problems()) {
      found = found || (p.where == bad.where && p.what.find(bad.what) != std::string::npos &&
                        p.fix.find(bad.fix) != std::string::npos);
    }
    EXPECT_TRUE(found) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Model, BadCombinationTest,
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
    Layout, BadCombinationTest,
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
        BadCombination{{"--overlap-param-gather"}, 1, "--overlap-param-gather", "needs overlap_grad_reduce", ""}));

INSTANTIATE_TEST_SUITE_P(
    Experts, BadCombinationTest,
    testing::Values(
        BadCombination{{"--ep", "2"}, 2, "--ep", "without experts", "--num-experts"},
        BadCombination{{"--num-experts", "6", "--ep", "4"}, 4, "--num-experts", "6 is not divisible", "4 or 8"},
        BadCombination{{"--num-experts", "1"}, 1, "--moe-router-topk", "above num_experts", "at most 1"},
        BadCombination{{"--num-experts", "8", "--ep", "4", "--tp", "2"}, 4, "--ep", "expert tensor 2 x expert 4", "1, 2, 4"}));

INSTANTIATE_TEST_SUITE_P(
    Training, BadCombinationTest,
    testing::Values(
        BadCombination{{"--gbs", "7"},
                       2,
                       "--gbs",
                       "7 is not divisible by micro_batch_size 2 * data_parallel_size 2 = 4",
                       "4 or 8"},
        BadCombination{{"--gbs", "8", "--num-micro-batches", "3"},
                       1,
                       "--num-micro-batches",
                       "which is 4 micro-batches",
                       ""},
        BadCombination{{"--mbs", "9223372036854775807"}, 2, "--mbs", "does not fit", ""},
        BadCombination{
            {"--num-micro-batches", "9223372036854775807"}, 1, "--num-micro-batches", "does not fit", ""},
        BadCombination{{"--gbs", "16", "--rampup-batch-size", "4", "5", "100"},
                       1,
                       "--rampup-batch-size",
                       "does not lead",
                       ""},
        BadCombination{{"--gbs", "16", "--rampup-batch-size", "16", "2", "100"},
                       1,
                       "--rampup-batch-size",
                       "does not lead",
                       ""},
        BadCombination{{"--gbs", "16", "--rampup-batch-size", "4", "2", "0"},
                       1,
                       "--rampup-batch-size",
                       "does not lead",
                       ""},
        BadCombination{{"--gbs", "16", "--rampup-batch-size", "4", "3", "10"},
                       1,
                       "--rampup-batch-size",
                       "3 is not divisible",
                       ""},
        BadCombination{{"--train-samples", "5"}, 1, "--train-samples", "both set", "one"},
        BadCombination{{"--lr-decay-samples", "5"},
                       1,
                       "--lr-decay-samples",
                       "training by samples, but train_iters is set",
                       "twin"},
        BadCombination{{"--lr-warmup-samples", "5"},
                       1,
                       "--lr-warmup-samples",
                       "training by samples, but train_iters is set",
                       "twin"},
        BadCombination{
            {"--lr-warmup-iters", "10"}, 1, "--lr-warmup-iters", "not shorter than the decay", "below 10"},
        BadCombination{{"--lr-warmup-fraction", "1"}, 1, "--lr-warmup-fraction", "not shorter", ""},
        BadCombination{{"--lr-warmup-fraction", "0.1", "--lr-warmup-iters", "1"},
                       1,
                       "--lr-warmup-fraction",
                       "both set",
                       ""},
        BadCombination{
            {"--lr-decay-style", "WSD"}, 1, "--lr-wsd-decay-iters", "needs lr_wsd_decay_iters", ""},
        BadCombination{{"--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "11"},
                       1,
                       "--lr-wsd-decay-iters",
                       "longer than",
                       "10"},
        BadCombination{{"--min-lr", "1"}, 1, "--min-lr", "min_lr = 1 is above lr = 0.001", ""},
        BadCombination{{"--lr-warmup-init", "1"}, 1, "--lr-warmup-init", "above lr", ""},
        BadCombination{
            {"--start-weight-decay", "0.1"}, 1, "--weight-decay-incr-style", "style is constant", ""},
        BadCombination{
            {"--weight-decay-incr-style", "cosine"}, 1, "--weight-decay-incr-style", "needs both ends", ""},
        BadCombination{{"--weight-decay-incr-style", "linear", "--start-weight-decay", "0.2",
                        "--end-weight-decay", "0.1"},
                       1,
                       "--end-weight-decay",
                       "below start",
                       ""},
        BadCombination{{"--override-opt-param-scheduler", "--use-checkpoint-opt-param-scheduler"},
                       1,
                       "--override-opt-param-scheduler",
                       "both set",
                       ""},
        BadCombination{{"--fp16", "--bf16"}, 1, "--fp16", "both set", ""}));

INSTANTIATE_TEST_SUITE_P(
    Data, BadCombinationTest,
    testing::Values(
        BadCombination{{"--data-path", "a"}, 1, "--mock-data", "both given", ""},
        BadCombination{{"--mock-data=false"}, 1, "--data-path", "no dataset", "--mock-data"},
        BadCombination{{"--mock-data=false", "--data-path", "a", "--train-data-path", "b"},
                       1,
                       "--data-path",
                       "both given",
                       ""},
        BadCombination{{"--mock-data=false", "--train-data-path", "b", "--split", "1"},
                       1,
                       "--split",
                       "its own path",
                       ""},
        BadCombination{{"--split", "1,2,3,4"}, 1, "--split", "up to three shares", "969,30,1"},
        BadCombination{{"--split", "0,0,0"}, 1, "--split", "more than 0", ""},
        BadCombination{{"--split", "a"}, 1, "--split", "up to three shares", ""},
        BadCombination{{"--split", "1,,2"}, 1, "--split", "up to three shares", ""},
        BadCombination{{"--split", "-1,2"}, 1, "--split", "up to three shares", ""},
        BadCombination{
            {"--tokenizer-type", "GPT2BPETokenizer"}, 1, "--merge-file", "needs merge_file", "--merge-file"},
        BadCombination{{"--tokenizer-type", "BertWordPieceCase"}, 1, "--vocab-file", "needs vocab_file", ""},
        BadCombination{
            {"--tokenizer-type", "Llama2Tokenizer"}, 1, "--tokenizer-model", "needs tokenizer_model", ""},
        BadCombination{{"--top-k", "5", "--top-p", "0.5"}, 1, "--top-p", "both set", ""},
        BadCombination{{"--greedy", "--top-k", "5"}, 1, "--greedy", "contradicts", ""}));

TEST(Finish, NamesEverythingThatIsMissing) {
  ParsedArguments parsed = parse_arguments("pretrain gpt", Texts{});
  try {
    finish(parsed, 1);
    FAIL();
  } catch (const UserError& error) {
    std::string names;
    for (const Problem& p : error.problems()) names += p.where + " ";
    EXPECT_EQ(
        names,
        "--num-layers --hidden-size --num-attention-heads --seq-length --micro-batch-size --train-iters --lr "
        "--data-path --vocab-file --merge-file ");
  }
}

TEST(Finish, SettingsWithNothingToActOnAreNoted) {
  for (const Texts& args : {Texts{"--hysteresis", "3"}, Texts{"--finetune"}, Texts{"--save-interval", "5"},
                            Texts{"--rotary-base", "500"}, Texts{"--loss-scale", "8"}}) {
    const ParsedArguments p = finished(args);
    ASSERT_EQ(p.notices.size(), 1u) << args[0];
    EXPECT_TRUE(p.notices[0].starts_with(args[0] + " has no effect without")) << p.notices[0];
  }
}

TEST(Finish, StepsDoNotMixWithSamples) {
  Texts args = small;
  args.erase(args.begin() + 10, args.begin() + 12);  // --train-iters 10
  args.insert(args.end(), {"--train-samples", "1000", "--lr-warmup-iters", "1", "--lr-decay-iters", "5",
                           "--lr-wsd-decay-iters", "2"});
  ParsedArguments parsed = parse_arguments("pretrain gpt", args);
  try {
    finish(parsed, 1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.problems().size(), 3u) << error.what();
  }
}

TEST(Finish, CountsInSamplesToo) {
  Texts args = small;
  args.erase(args.begin() + 10, args.begin() + 12);  // --train-iters 10
  args.insert(args.end(), {"--train-samples", "1000", "--lr-warmup-samples", "100"});
  ParsedArguments parsed = parse_arguments("pretrain gpt", args);
  finish(parsed, 1);
  EXPECT_EQ(parsed.args.lr_decay_samples, 1000);
  EXPECT_FALSE(parsed.args.lr_decay_iters.has_value());
}

}  // namespace
}  // namespace teratron
