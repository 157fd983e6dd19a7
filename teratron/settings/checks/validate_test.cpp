// validate_arguments(): derived values and notices.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

TEST(Validate, DerivesMegatronsDefaults) {
  const ParsedArguments p = validated({"--tp", "2"}, 8);
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

// --mock-data and the flags, without those of `small`.
ParsedArguments mock(const Args& flags, int64_t world_size = 1) {
  Args args = {"--mock-data"};
  args.insert(args.end(), flags.begin(), flags.end());
  ParsedArguments parsed = parse_arguments(gpt_training, args, {.defer_problems = true});
  validate_arguments(parsed, world_size);
  return parsed;
}

const Args tiny_model = {"--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "2"};

TEST(Validate, MockDataNeedsOnlyAModel) {
  const ParsedArguments p = mock(tiny_model, 2);
  EXPECT_TRUE(
      noted(p,
            "defaults of --mock-data: tokenizer_type = NullTokenizer, vocab_size = 50256, seq_length = 1024, "
            "micro_batch_size = 1, lr = 0.0003, train_iters = 100, log_interval = 10, eval_iters = 10"));
  EXPECT_EQ(p.args.global_batch_size, 2);
  EXPECT_EQ(p.args.lr_decay_iters, 100);
  for (const char* name : {"seq_length", "micro_batch_size", "lr", "train_iters", "log_interval"})
    EXPECT_EQ(p.sources.at(name), "default of --mock-data") << name;
  EXPECT_NE(explain(p).find("train_iters = 100  (default of --mock-data)\n"), std::string::npos);
}

TEST(Validate, DefaultsOfMockDataGiveWayToFlags) {
  Args flags = tiny_model;
  flags.insert(flags.end(),
               {"--train-samples", "20", "--global-batch-size", "4", "--max-position-embeddings", "64"});
  const ParsedArguments p = mock(flags);
  EXPECT_TRUE(
      noted(p,
            "defaults of --mock-data: tokenizer_type = NullTokenizer, vocab_size = 50256, seq_length = 64, "
            "micro_batch_size = 1, lr = 0.0003"));
  EXPECT_FALSE(p.args.train_iters);
  EXPECT_EQ(p.args.log_interval, 100);
  EXPECT_EQ(p.args.eval_iters, 100);
  EXPECT_FALSE(noted(validated({}), "defaults of --mock-data"));
}

TEST(Validate, AMissingModelIsOneProblem) {
  try {
    mock({});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    ASSERT_EQ(error.problems().size(), 1u) << error.what();
    EXPECT_EQ(error.problems()[0].what, "no model is given");
    EXPECT_NE(error.problems()[0].fix.find(
                  "--model-preset, such as gpt2, --hf with a Hugging Face folder, or --num-layers"),
              std::string::npos);
  }
}

TEST(Validate, SwigluWidthIsAMultipleOf64) {
  for (const int64_t hidden : {64, 96, 768, 1000, 4096, 12288}) {
    const ParsedArguments p = validated({"--swiglu", "--hidden-size", std::to_string(hidden)});
    EXPECT_EQ(p.args.ffn_hidden_size,
              static_cast<int64_t>(4.0 * static_cast<double>(hidden) * 2 / 3 / 64) * 64);
  }
}

TEST(Validate, ChosenValuesStay) {
  const ParsedArguments p =
      validated({"--ffn-hidden-size", "100", "--kv-channels", "16", "--global-batch-size", "6",
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
  ASSERT_EQ(p.notices.size(), 3u);
  EXPECT_EQ(p.notices[0], "--num-query-groups has no effect without --group-query-attention");
  EXPECT_EQ(p.notices[1], "--split has no effect with --mock-data");
  EXPECT_EQ(p.notices[2], "--sequence-parallel has no effect with --tensor-model-parallel-size 1");
}

TEST(Validate, PositionsFollowFromBothSpellings) {
  EXPECT_EQ(validated({"--no-position-embedding"}).args.position_embedding_type, "none");
  EXPECT_EQ(
      validated({"--no-position-embedding", "--use-rotary-position-embeddings"}).args.position_embedding_type,
      "rope");
}

TEST(Validate, MultiqueryIsOneGroup) {
  const ParsedArguments p = validated({"--attention-head-type", "multiquery"});
  EXPECT_TRUE(p.args.group_query_attention);
  EXPECT_EQ(query_groups(p.args), 1);
  EXPECT_EQ(query_groups(validated({"--attention-head-type", "multihead"}).args), 8);
}

TEST(Validate, PaddedVocabulary) {
  const Arguments tp2 = validated({"--tp", "2"}, 2).args;
  EXPECT_EQ(padded_vocab_size(tp2, 1), 256);
  EXPECT_EQ(padded_vocab_size(tp2, 50257), 50432);
  EXPECT_EQ(padded_vocab_size(validated({}).args, 50257), 50304);
  EXPECT_EQ(padded_vocab_size(validated({"--padded-vocab-size", "300"}).args, 300), 300);
  EXPECT_THROW(padded_vocab_size(validated({"--padded-vocab-size", "300"}).args, 301), UserError);
  EXPECT_THROW(
      padded_vocab_size(
          validated({"--make-vocab-size-divisible-by", "9223372036854775807", "--tp", "2"}, 2).args, 5),
      UserError);
}

TEST(Validate, ExplainsWhereValuesComeFrom) {
  const std::string text = explain(validated({"--tp", "2"}, 2));
  EXPECT_NE(text.find("tensor_model_parallel_size = 2  (--tp)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("kv_channels = 8  (derived)\n"), std::string::npos);
  EXPECT_EQ(text.find("adam_beta1"), std::string::npos);
}

TEST(Validate, TrainingOfNoSteps) {
  const ParsedArguments p = validated({"--train-iters", "0", "--skip-train"});
  EXPECT_FALSE(p.args.lr_decay_iters.has_value());
  EXPECT_EQ(to_json(arguments_from_json(to_json(p.args), "x")), to_json(p.args));
}

TEST(Validate, NamesEverythingThatIsMissing) {
  ParsedArguments parsed = parse_arguments(gpt_training, Args{});
  try {
    validate_arguments(parsed, 1);
    FAIL();
  } catch (const UserError& error) {
    std::string names;
    for (const Problem& p : error.problems()) names += p.where + " ";
    EXPECT_EQ(names,
              "--model-preset --micro-batch-size --train-iters --lr --data-path --vocab-file --merge-file ");
  }
  try {
    mock({"--hidden-size", "64"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.problems().size(), 2u) << error.what();
    EXPECT_EQ(error.problems()[0].where, "--num-layers");
    EXPECT_EQ(error.problems()[1].where, "--num-attention-heads");
  }
}

TEST(Validate, SettingsWithNothingToActOnAreNoted) {
  for (const Args& args :
       {Args{"--hysteresis", "3"}, Args{"--save-interval", "5"}, Args{"--rotary-base", "500"},
        Args{"--loss-scale", "8"}, Args{"--override-opt-param-scheduler"}}) {
    const ParsedArguments p = validated(args);
    ASSERT_EQ(p.notices.size(), 1u) << args[0];
    EXPECT_TRUE(p.notices[0].starts_with(args[0] + " has no effect without")) << p.notices[0];
  }
}

TEST(Validate, SettingsThatOthersMakeInertAreNoted) {
  for (const Args& args : {Args{"--split", "1,1,1"},
                           Args{"--data-cache-path", "x"},
                           Args{"--mid-level-dataset-surplus", "0.1"},
                           Args{"--no-data-sharding"},
                           Args{"--eval-interval", "5", "--eval-iters", "0"},
                           Args{"--vocab-file", "x"},
                           Args{"--merge-file", "x"},
                           Args{"--tokenizer-model", "x"},
                           Args{"--tiktoken-pattern", "v1"},
                           Args{"--make-vocab-size-divisible-by", "8", "--padded-vocab-size", "200"},
                           Args{"--lr-wsd-decay-style", "cosine"},
                           Args{"--lr-wsd-decay-iters", "3"},
                           Args{"--lr-warmup-init", "1e-4"},
                           Args{"--min-lr", "1e-4", "--lr-decay-style", "constant"},
                           Args{"--init-method-std", "0.01", "--init-method-xavier-uniform"},
                           Args{"--hysteresis", "3", "--fp16", "--loss-scale", "8"},
                           Args{"--min-loss-scale", "3", "--fp16", "--loss-scale", "8"},
                           Args{"--ddp-bucket-size", "9"},
                           Args{"--grad-reduce-in-bf16"},
                           Args{"--use-distributed-optimizer"},
                           Args{"--use-tp-pp-dp-mapping"},
                           Args{"--check-weight-hash-across-dp-replicas-interval", "3"}}) {
    const ParsedArguments p = validated(args);
    ASSERT_EQ(p.notices.size(), 1u) << args[0];
    EXPECT_TRUE(p.notices[0].find("has no effect ") != std::string::npos) << p.notices[0];
  }
  EXPECT_TRUE(validated({"--use-tp-pp-dp-mapping", "--pp", "2"}, 4).notices.empty());
  for (const char* flag : {"--grad-reduce-in-bf16", "--use-distributed-optimizer"}) {
    EXPECT_TRUE(validated({flag}, 2).notices.empty()) << flag;
  }
  EXPECT_TRUE(validated({"--lr-warmup-init", "1e-4", "--lr-warmup-iters", "2"}).notices.empty());
  EXPECT_TRUE(validated({"--hysteresis", "3", "--fp16"}).notices.empty());
  EXPECT_TRUE(validated({"--seed", "4294967295"}).notices.empty());
}

TEST(Validate, StepsDoNotMixWithSamples) {
  Args args = small;
  args.erase(args.begin() + 10, args.begin() + 12);  // --train-iters 10
  args.insert(args.end(), {"--train-samples", "1000", "--lr-warmup-iters", "1", "--lr-decay-iters", "5",
                           "--lr-wsd-decay-iters", "2"});
  ParsedArguments parsed = parse_arguments(gpt_training, args);
  try {
    validate_arguments(parsed, 1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.problems().size(), 3u) << error.what();
  }
}

TEST(Validate, CountsInSamplesToo) {
  Args args = small;
  args.erase(args.begin() + 10, args.begin() + 12);  // --train-iters 10
  args.insert(args.end(), {"--train-samples", "1000", "--lr-warmup-samples", "100"});
  ParsedArguments parsed = parse_arguments(gpt_training, args);
  validate_arguments(parsed, 1);
  EXPECT_EQ(parsed.args.lr_decay_samples, 1000);
  EXPECT_FALSE(parsed.args.lr_decay_iters.has_value());
}

}  // namespace
}  // namespace teratron
