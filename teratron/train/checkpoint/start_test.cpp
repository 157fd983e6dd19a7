// Where a training starts: with the run in --save, whatever else is named.
#include <cstdlib>
#include <cstring>

#include "teratron/models/weights.h"
#include "teratron/settings/component_options.h"
#include "teratron/testing/run_log.h"
#include "teratron/testing/train_run.h"
#include "teratron/train/loop/train_loop.h"

namespace teratron {
namespace {

class StartTest : public SmallRun {};

TEST_F(StartTest, GoesOnWithTheRunInSave) {
  const auto saves = [&](const std::string& name, const std::vector<std::string>& more = {}) {
    return without(flags(name, more), {"--load"});
  };
  EXPECT_EQ(train(saves("whole")), ExitCode::ok);
  EXPECT_EQ(train(saves("halves", {"--exit-interval", "7"})), ExitCode::ok);
  EXPECT_EQ(train(saves("halves")), ExitCode::ok);
  EXPECT_EQ(tensors("halves", 20), tensors("whole", 20));
  // Wherever the first start took its weights from.
  const std::string base = (folder_ / "whole").string();
  for (const std::vector<std::string>& source : {std::vector<std::string>{"--finetune", "--load", base},
                                                 {"--pretrained-checkpoint", base},
                                                 {"--load", base, "--ckpt-step", "10"}}) {
    std::vector<std::string> first = source;
    first.insert(first.end(), {"--exit-interval", "15"});
    const std::string name = source[0].substr(2), broken = "broken-" + name;
    EXPECT_EQ(train(saves(name, source)), ExitCode::ok);
    EXPECT_EQ(train(saves(broken, first)), ExitCode::ok);
    EXPECT_EQ(train(saves(broken, source)), ExitCode::ok);
    EXPECT_EQ(tensors(broken, 20), tensors(name, 20)) << name;
  }
}

TEST_F(StartTest, GoesBackToAStepOnce) {
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  const std::vector<std::string> back = {"--ckpt-step", "10", "--seed", "7", "--save-interval", "2"};
  std::vector<std::string> first = back;
  first.insert(first.end(), {"--exit-interval", "14"});
  EXPECT_EQ(train(flags("run", first)), ExitCode::ok);
  const std::string again = stderr_of(flags("run", back));
  EXPECT_NE(again.find("goes on from this one"), std::string::npos) << again;
  EXPECT_EQ(log("run").steps.at(14).iteration, 15);
  EXPECT_EQ(train(flags("run", {"--ckpt-step", "12", "--exit-interval", "13"})), ExitCode::ok)
      << "another step";
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000013"));
}

TEST_F(StartTest, LeavesAnotherRunAlone) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10"})), ExitCode::ok);
  const auto content = [&] {
    std::map<std::string, fs::file_time_type> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "run"))
      all[entry.path().string()] = entry.last_write_time();
    return all;
  };
  const auto before = content();
  const std::string base = (folder_ / "run").string();
  for (const auto& [says, other] :
       {std::pair{"hidden_size: 16", std::vector<std::string>{"--hidden-size", "32"}},
        {"tokenizer_vocab_size: 41", {"--vocab-size", "41"}},
        {"--finetune", {"--finetune"}},
        {"lora_rank", {"--lora-rank", "2"}}}) {
    for (const std::vector<std::string>& args :
         {without(flags("run", other), {"--load"}), flags("run", other)}) {
      try {
        train(args);
        ADD_FAILURE() << says;
      } catch (const UserError& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::config);
        const std::string what = error.what();
        for (const char* const part : {says, "--save", "--fresh", "iter_0000010"})
          EXPECT_NE(what.find(part), std::string::npos) << what;
      }
    }
  }
  EXPECT_EQ(content(), before);
}

// Restarts of a job that began with --fresh go on; another job starts over.
TEST_F(StartTest, FreshOncePerJob) {
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  setenv("TERATRON_JOB_NAME", "a", 1);
  EXPECT_EQ(train(flags("run", {"--fresh", "--exit-interval", "5"})), ExitCode::ok);
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  EXPECT_EQ(train(flags("run", {"--fresh", "--exit-interval", "12"})), ExitCode::ok);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "replaced-2"));
  EXPECT_EQ(log("run").steps.at(5).iteration, 6);
  setenv("TERATRON_JOB_NAME", "b", 1);
  EXPECT_EQ(train(flags("run", {"--fresh", "--exit-interval", "5"})), ExitCode::ok)
      << "its first start ended before it put the run aside";
  EXPECT_TRUE(fs::exists(folder_ / "run" / "replaced-2" / "iter_0000012"));
  unsetenv("TERATRON_JOB_NAME");
  unsetenv("TORCHELASTIC_RESTART_COUNT");
}

// The optimizer's state is that of fp32 weights in every precision.
TEST_F(StartTest, PrecisionMayChange) {
  EXPECT_EQ(train(flags("full", {"--exit-interval", "10"})), ExitCode::ok);
  EXPECT_EQ(train(flags("half", {"--exit-interval", "10", "--bf16"})), ExitCode::ok);
  const StopSignals signals;
  for (const auto& [name, precision] :
       {std::pair{"full", "--bf16"}, {"full", "--fp16"}, {"half", ""}, {"half", "--fp16"}}) {
    std::vector<std::string> args = flags(name, {"--exit-interval", "15"});
    if (*precision != 0) args.emplace_back(precision);
    const ParsedArguments parsed = pretrain_arguments(args, 1, plain_gpt());
    TrainLoop loop(parsed.args, Mesh(), signals, plain_gpt());
    loop.load();
    EXPECT_EQ(loop.state().iteration, 10);
    std::map<std::string, std::string> saved;
    for (const auto& [key, bytes] : tensors(name, 10)) saved[key.substr(key.find(' ') + 1)] = bytes;
    TrainEngine& engine = loop.trainer().engine();
    std::vector<StateTensor> held = engine.optimizer().state();
    if (*precision == 0) {
      for (StateTensor& weight : parameter_tensors(engine.parameters())) held.push_back(weight);
    }
    for (const StateTensor& state : held) {
      std::string key = state.name;
      const std::string master = "optimizer.param.";
      if (key.starts_with(master) && !saved.contains(key)) key = key.substr(master.size());
      if (saved.contains(master + key)) key = master + key;
      const at::Tensor values = state.read().contiguous();
      ASSERT_EQ(values.scalar_type(), at::kFloat) << key;
      // The padding of the vocabulary is not saved.
      ASSERT_LE(saved.at(key).size(), values.nbytes()) << key;
      EXPECT_EQ(std::memcmp(values.const_data_ptr(), saved.at(key).data(), saved.at(key).size()), 0) << key;
    }
    EXPECT_GT(held.size(), 10U);
    loop.train();
    EXPECT_EQ(loop.state().iteration, 15);
  }
}

TEST_F(StartTest, EvaluatesInAnyPrecision) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10", "--bf16"})), ExitCode::ok);
  const std::string load = (folder_ / "run").string();
  const auto evaluate = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = without(flags("none", more), {"--save", "--load"});
    args.insert(args.end(), {"--load", load, "--skip-train"});
    return stdout_of(args);
  };
  for (const std::vector<std::string>& precision : {std::vector<std::string>{}, {"--fp16"}, {"--bf16"}})
    EXPECT_NE(evaluate(precision).find("lm loss value"), std::string::npos);
}

TEST_F(StartTest, CheckpointArgsBringTokenizerAndPrecision) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10", "--bf16"})), ExitCode::ok);
  const std::string base = (folder_ / "run").string();
  const std::vector<std::string> few =
      without(flags("other", {"--use-checkpoint-args"}),
              {"--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length",
               "--max-position-embeddings", "--tokenizer-type", "--vocab-size", "--load", "--save"});
  for (const char* const flag : {"--load", "--save", "--pretrained-checkpoint"}) {
    std::vector<std::string> args = few;
    args.insert(args.end(), {flag, base});
    const Arguments taken = pretrain_arguments(args, 1, plain_gpt()).args;
    EXPECT_TRUE(taken.bf16) << flag;
    EXPECT_EQ(taken.tokenizer_type, "NullTokenizer") << flag;
    EXPECT_EQ(taken.vocab_size, 40) << flag;
    EXPECT_EQ(taken.hidden_size, 16) << flag;
    args.emplace_back("--fp16");
    EXPECT_FALSE(pretrain_arguments(args, 1, plain_gpt()).args.bf16) << "the user's choice";
  }
}

}  // namespace
}  // namespace teratron
