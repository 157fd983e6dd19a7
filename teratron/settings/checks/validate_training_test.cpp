// Batches, schedules, data and tokenizers that cannot be.
#include <gtest/gtest.h>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

class BadTrainingTest : public testing::TestWithParam<BadCombination> {};

TEST_P(BadTrainingTest, IsRefused) {
  expect_refused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Training, BadTrainingTest,
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
        BadCombination{
            {"--num-train-epochs", "2"}, 1, "--num-train-epochs", "train_iters are both set", "one"},
        BadCombination{
            {"--decoupled-lr", "1e-5", "--min-lr", "1e-4"}, 1, "--decoupled-lr", "above decoupled_lr", ""},
        BadCombination{{"--adam-beta2", "1"}, 1, "--adam-beta2", "never lets a gradient in", "below 1"},
        BadCombination{{"--adlr-autoresume"}, 1, "--adlr-autoresume", "there is no --save", "--save"},
        BadCombination{{"--profile", "--run-dir", "x", "--profile-step-end", "10"},
                       1,
                       "--profile-step-end",
                       "not after profile_step_start",
                       ""},
        BadCombination{{"--profile"}, 1, "--profile", "there is none", "--run-dir"},
        BadCombination{{"--wandb-project", "p"}, 1, "--wandb-project", "there is none", "--run-dir"},
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
        BadCombination{{"--calculate-per-token-loss", "--ddp-average-in-collective"},
                       1,
                       "--calculate-per-token-loss",
                       "averages over the ranks",
                       "one"},
        BadCombination{{"--max-nan-iterations", "2", "--no-check-for-nan-in-loss-and-grad"},
                       1,
                       "--max-nan-iterations",
                       "needs the check",
                       ""},
        BadCombination{
            {"--iterations-to-skip", "-1"}, 1, "--iterations-to-skip", "out of range", "at least 0"},
        BadCombination{{"--fp16", "--bf16"}, 1, "--fp16", "both set", ""}));

INSTANTIATE_TEST_SUITE_P(
    Data, BadTrainingTest,
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
        BadCombination{{"--data-args-path", "a"}, 1, "--mock-data", "both given", ""},
        BadCombination{{"--mock-data=false", "--data-args-path", "a", "--per-split-data-args-path", "b"},
                       1,
                       "--data-path",
                       "both given",
                       ""},
        BadCombination{{"--mock-data=false", "--data-args-path", "a", "--data-path", "b"},
                       1,
                       "--data-args-path",
                       "both given",
                       ""},
        BadCombination{{"--mock-data=false", "--train-data-path", "a", "--per-split-data-args-path", "b"},
                       1,
                       "--per-split-data-args-path",
                       "both given",
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

}  // namespace
}  // namespace teratron
