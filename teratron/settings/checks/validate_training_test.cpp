// Invalid batch sizes, schedules, data and tokenizer settings.
#include <gtest/gtest.h>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

// clang-format off
const BadCombination bad_trainings[] = {
    {"--gbs 7", 2, "--gbs", "7 is not divisible by micro_batch_size 2 * data_parallel_size 2 = 4", "4 or 8"},
    {"--lr-mult 2", 1, "--lr-mult", "lr_mult = 2 names no parameters", "--scale-lr-cond"},
    {"--lr-mult x=-1", 1, "--lr-mult", "'x=-1' is not PATTERN=F", "0.1"},
    {"--lr-mult =2", 1, "--lr-mult", "'=2' is not PATTERN=F"},
    {"--scale-lr-cond x", 1, "--scale-lr-cond", "needs --lr-mult"},
    {"--scale-lr-cond x --lr-mult y=2", 1, "--scale-lr-cond", "no factor"},
    {"--no-wd-decay-cond x --no-weight-decay-cond-type apply_wd_to_qk_layernorm --qk-layernorm", 1, "--no-weight-decay-cond-type", "mutually exclusive"},
    {"--logits-out x", 1, "--logits-out", "needs --return-logits"},
    {"--gbs 8 --num-micro-batches 3", 1, "--num-micro-batches", "which is 4 micro-batches"},
    {"--mbs 9223372036854775807", 2, "--mbs", "exceeds 64 bits"},
    {"--num-micro-batches 9223372036854775807", 1, "--num-micro-batches", "exceeds 64 bits"},
    {"--gbs 16 --rampup-batch-size 4 5 100", 1, "--rampup-batch-size", "does not lead"},
    {"--gbs 16 --rampup-batch-size 16 2 100", 1, "--rampup-batch-size", "does not lead"},
    {"--gbs 16 --rampup-batch-size 4 2 0", 1, "--rampup-batch-size", "does not lead"},
    {"--gbs 16 --rampup-batch-size 4 3 10", 1, "--rampup-batch-size", "3 is not divisible"},
    {{"--step-batch-size-schedule", "0:4 100:7"}, 1,
     "--step-batch-size-schedule", "batch size 7 is not divisible by micro-batch-size 2", "6 or 8"},
    {{"--step-batch-size-schedule", "0:4 1K"}, 1, "--step-batch-size-schedule", "no colon", "0:768 250B:1536"},
    {{"--step-batch-size-schedule", "0:4 32:8", "--rampup-batch-size", "2", "2", "8"}, 1,
     "--step-batch-size-schedule", "and --rampup-batch-size are mutually exclusive", "one of them"},
    {"--train-samples 5", 1, "--train-samples", "mutually exclusive", "one"},
    {"--train-samples 1", 1, "--train-samples", "less than a batch of 2", "at least 2"},
    {"--gbs 16 --rampup-batch-size 4 4 9223372036854775807", 1, "--rampup-batch-size", "exceed the 64 bits"},
    {"--train-iters 4611686018427387904", 1, "--train-iters", "exceed the 64 bits"},
    {"--train-samples 9223372036854775807", 1, "--train-samples", "exceed the 64 bits"},
    {"--eval-iters 4611686018427387904", 1, "--eval-iters", "exceed the 64 bits"},
    {"--train-iters 100000000000000 --eval-interval 1 --eval-iters 100000", 1, "--eval-iters", "exceed the 64 bits"},
    {"--gbs 4611686018427387904", 1,
     "--train-iters", "at global_batch_size = 4611686018427387904 and seq_length = 32 the tokens exceed", "batch"},
    {"--seed 4294967296", 1, "--seed", "exceeds the 32 bits", "4294967295"},
    {"--decoupled-lr 1e-5 --min-lr 1e-4", 1, "--decoupled-lr", "must be at least min_lr"},
    {"--adam-beta2 1", 1, "--adam-beta2", "out of range", "below 1"},
    {"--adlr-autoresume", 1, "--adlr-autoresume", "needs --save", "--save"},
    {"--profile --run-dir x --profile-step-end 10", 1,
     "--profile-step-end", "must be greater than profile_step_start"},
    {"--profile", 1, "--profile", "needs --save or --run-dir", "--run-dir"},
    {"--wandb-project p", 1, "--wandb-project", "needs --save or --run-dir", "--run-dir"},
    {"--lr-decay-samples 5", 1, "--lr-decay-samples", "and --train-iters are mutually exclusive", "one of them"},
    {"--lr-warmup-samples 5", 1, "--lr-warmup-samples", "and --train-iters are mutually exclusive", "one of them"},
    {"--lr-warmup-iters 10", 1, "--lr-warmup-iters", "must be less than lr_decay_iters = 10", "less than 10"},
    {"--lr-warmup-fraction 1", 1, "--lr-warmup-fraction", "out of range"},
    {"--lr-warmup-fraction 0.1 --lr-warmup-iters 1", 1, "--lr-warmup-fraction", "mutually exclusive"},
    {"--lr-decay-style WSD", 1, "--lr-wsd-decay-iters", "needs --lr-wsd-decay-iters"},
    {"--lr-decay-style WSD --lr-wsd-decay-iters 11", 1,
     "--lr-wsd-decay-iters", "must be at most lr_decay_iters", "10"},
    {"--min-lr 1", 1, "--min-lr", "min_lr = 1.0 must be at most lr = 0.001"},
    {"--lr-warmup-init 1", 1, "--lr-warmup-init", "must be at most lr"},
    {"--start-weight-decay 0.1", 1, "--weight-decay-incr-style", "mutually exclusive"},
    {"--weight-decay-incr-style cosine", 1, "--weight-decay-incr-style", "needs --start-weight-decay"},
    {"--weight-decay-incr-style linear --start-weight-decay 0.2 --end-weight-decay 0.1", 1,
     "--end-weight-decay", "must be at least start_weight_decay"},
    {"--override-opt-param-scheduler --use-checkpoint-opt-param-scheduler", 1,
     "--override-opt-param-scheduler", "mutually exclusive"},
    {"--calculate-per-token-loss --ddp-average-in-collective", 1,
     "--calculate-per-token-loss", "mutually exclusive", "one"},
    {"--max-nan-iterations 2 --no-check-for-nan-in-loss-and-grad", 1, "--max-nan-iterations", "mutually exclusive"},
    {"--iterations-to-skip -1", 1, "--iterations-to-skip", "out of range", "at least 0"},
    {"--fp16 --bf16", 1, "--fp16", "mutually exclusive"},
};
// clang-format on

TEST(BadTraining, IsRejected) {
  for (const BadCombination& row : bad_trainings) expect_rejected(row);
}

// clang-format off
const BadCombination bad_data[] = {
    {"--data-path a", 1, "--mock-data", "mutually exclusive"},
    {"--mock-data=false", 1, "--data-path", "no dataset", "--mock-data"},
    {"--mock-data=false --data-path a --train-data-path b", 1, "--data-path", "mutually exclusive"},
    {"--mock-data=false --train-data-path b --split 1", 1, "--split", "mutually exclusive"},
    {"--data-args-path a", 1, "--mock-data", "mutually exclusive"},
    {"--mock-data=false --data-args-path a --per-split-data-args-path b", 1,
     "--data-args-path", "mutually exclusive"},
    {"--mock-data=false --data-args-path a --data-path b", 1, "--data-args-path", "mutually exclusive"},
    {"--mock-data=false --train-data-path a --per-split-data-args-path b", 1,
     "--per-split-data-args-path", "mutually exclusive"},
    {"--split 1,2,3,4", 1, "--split", "up to three weights", "969,30,1"},
    {"--split 0,0,0", 1, "--split", "sum above 0"},
    {"--split a", 1, "--split", "up to three weights"},
    {"--split 1,,2", 1, "--split", "up to three weights"},
    {"--split -1,2", 1, "--split", "up to three weights"},
    {"--tokenizer-type GPT2BPETokenizer", 1, "--merge-file", "needs --merge-file", "--merge-file"},
    {"--tokenizer-type BertWordPieceCase", 1, "--vocab-file", "needs --vocab-file"},
    {"--tokenizer-type Llama2Tokenizer", 1, "--tokenizer-model", "needs --tokenizer-model"},
    {"--top-k 5 --top-p 0.5", 1, "--top-p", "mutually exclusive"},
    {"--greedy --top-k 5", 1, "--greedy", "mutually exclusive"},
};
// clang-format on

TEST(BadTraining, DataAreRejected) {
  for (const BadCombination& row : bad_data) expect_rejected(row);
}

}  // namespace
}  // namespace teratron
