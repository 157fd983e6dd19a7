// A resumed run is bitwise equal to an uninterrupted one.
#include <algorithm>
#include <cstring>
#include <limits>

#include "teratron/base/fault_point.h"
#include "teratron/settings/component_options.h"
#include "teratron/testing/run_log.h"
#include "teratron/testing/train_run.h"
#include "teratron/train/loop/train_loop.h"

namespace teratron {
namespace {

using Resume = SmallRun;

TEST_F(Resume, IsBitwiseEqual) {
  EXPECT_EQ(train(flags("whole")), ExitCode::ok);
  EXPECT_EQ(train(flags("halves", {"--exit-interval", "10"})), ExitCode::ok);
  EXPECT_EQ(train(flags("halves")), ExitCode::ok);
  const auto whole = tensors("whole", 20);
  EXPECT_FALSE(whole.empty());
  EXPECT_EQ(tensors("halves", 20), whole);
  EXPECT_EQ(read_run_log(folder_ / "whole" / "metrics.jsonl").steps.size(), 20U);
  EXPECT_EQ(read_run_log(folder_ / "halves" / "metrics.jsonl").steps.size(), 20U);
}

TEST_F(Resume, IsBitwiseEqualWithDropoutOnSeveralRanks) {
  const std::vector<std::string> layout = {"--tp", "2", "--sequence-parallel", "--use-distributed-optimizer"};
  std::vector<std::string> first = layout;
  first.insert(first.end(), {"--exit-interval", "10"});
  EXPECT_EQ(train(flags("whole", layout), 4), ExitCode::ok);
  EXPECT_EQ(train(flags("halves", first), 4), ExitCode::ok);
  EXPECT_EQ(train(flags("halves", layout), 4), ExitCode::ok);
  EXPECT_EQ(tensors("halves", 20), tensors("whole", 20));
}

TEST_F(Resume, MatchesInAnotherLayout) {
  EXPECT_EQ(train(flags("serial", {"--exit-interval", "10"})), ExitCode::ok);
  fs::copy(folder_ / "serial", folder_ / "parallel", fs::copy_options::recursive);
  EXPECT_EQ(train(flags("parallel", {"--tp", "2", "--use-distributed-optimizer"}), 4), ExitCode::ok);
  expect_same_losses("parallel", "serial", {});
}

TEST_F(Resume, ConsumesTheSameValidationData) {
  for (const char* stop : {"3", "5", "7", "9", "11", "13"}) {
    EXPECT_EQ(train(flags("run", {"--exit-interval", stop})), ExitCode::ok);
  }
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000020"));
}

TEST_F(Resume, NoLoadOptimRestartsAdam) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10"})), ExitCode::ok);
  EXPECT_EQ(train(flags("run", {"--no-load-optim"})), ExitCode::ok);
  const CheckpointInfo info = open_checkpoint(folder_ / "run" / "iter_0000020");
  EXPECT_NE(info.state.find("\"optimizer_steps\":10"), std::string::npos) << info.state;
}

TEST_F(Resume, SkipTrainNeedsNoLearningRate) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10"})), ExitCode::ok);
  std::vector<std::string> args = flags("run", {"--skip-train"});
  const auto lr = std::find(args.begin(), args.end(), "--lr");
  args.erase(lr, lr + 2);
  EXPECT_EQ(train(args), ExitCode::ok);
}

TEST_F(Resume, FinishedRunIsNotTrainedAgainUnlessFresh) {
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  const auto before = fs::last_write_time(folder_ / "run" / "iter_0000020" / "manifest.json");
  testing::internal::CaptureStdout();
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("already finished"), std::string::npos);
  EXPECT_EQ(fs::last_write_time(folder_ / "run" / "iter_0000020" / "manifest.json"), before);
  EXPECT_EQ(train(flags("run", {"--fresh"})), ExitCode::ok);
  EXPECT_NE(fs::last_write_time(folder_ / "run" / "iter_0000020" / "manifest.json"), before);
}

TEST_F(Resume, FullDiskDuringTrainingIsAWarning) {
  const ScopedFaults faults("file.write@step=10:errno=ENOSPC");
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "iter_0000010"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000020"));
}

TEST_F(Resume, FullDiskAtTheLastSaveIsAnError) {
  const ScopedFaults faults("file.write@step=15:errno=ENOSPC");
  try {
    train(flags("run", {"--save-interval", "100", "--train-iters", "15"}));
    FAIL();
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.exit_code(), ExitCode::checkpoint);
  }
  EXPECT_FALSE(fs::exists(folder_ / "run" / "iter_0000015"));
}

TEST_F(Resume, AsyncSaveIsBitwiseEqual) {
  for (const int ranks : {1, 4}) {
    std::vector<std::string> layout;
    if (ranks == 4) layout = {"--tp", "2", "--use-distributed-optimizer"};
    const std::string name = std::to_string(ranks);
    EXPECT_EQ(train(flags("foreground" + name, layout), ranks), ExitCode::ok);
    layout.emplace_back("--async-save");
    // Slower than training: weights change while they are written.
    const ScopedFaults slow("ckpt.shard_created@step=10:delay=200");
    EXPECT_EQ(train(flags("background" + name, layout), ranks), ExitCode::ok);
    for (const int iteration : {10, 20}) {
      EXPECT_EQ(tensors("background" + name, iteration), tensors("foreground" + name, iteration))
          << iteration;
    }
  }
}

TEST_F(Resume, AsyncSaveDoesNotBlockTraining) {
  const ScopedFaults slow("ckpt.shard_created@step=10:delay=200");
  const std::string text = stdout_of(flags("run", {"--async-save", "--log-interval", "1"}));
  const size_t next = text.find("iteration       11/");
  const size_t saved = text.find("successfully saved checkpoint from iteration      10");
  ASSERT_NE(next, std::string::npos);
  ASSERT_NE(saved, std::string::npos);
  EXPECT_LT(next, saved);
  EXPECT_NE(text.find("successfully saved checkpoint from iteration      20"), std::string::npos);
}

TEST_F(Resume, FullDiskDuringAsyncSaveIsAWarning) {
  const ScopedFaults faults("file.write@step=10:errno=ENOSPC");
  const std::string warnings = stderr_of(flags("run", {"--async-save"}), 2);
  EXPECT_NE(warnings.find("was not saved; the next save tries again"), std::string::npos) << warnings;
  EXPECT_FALSE(fs::exists(folder_ / "run" / "iter_0000010"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000020"));
}

TEST_F(Resume, AsyncSaveFailureStopsAllRanks) {
  const ScopedFaults faults("ckpt.shard_done@step=10,rank=1:throw");
  const ParsedArguments parsed = pretrain_arguments(flags("run", {"--async-save"}), 2, plain_gpt());
  const StopSignals signals;
  std::vector<int64_t> ended(2);
  const auto body = [&](World& world) {
    TrainLoop loop(parsed.args, Mesh(mesh_options(parsed.args), world), signals, plain_gpt());
    try {
      loop.train();
    } catch (const Fault& fault) {
      EXPECT_NE(std::string(fault.what()).find("ckpt.shard_done"), std::string::npos) << fault.what();
      ended[world.rank()] = loop.state().iteration;
      throw;
    }
  };
  EXPECT_THROW(run_ranks(2, body), Fault);
  EXPECT_GT(ended[0], 10);
  EXPECT_EQ(ended[0], ended[1]) << "after the same step";
  EXPECT_FALSE(fs::exists(folder_ / "run" / "iter_0000010"));
}

TEST_F(Resume, DeletesCheckpointsBetweenRetainedOnes) {
  for (const bool background : {false, true}) {
    const std::string name = background ? "background" : "foreground";
    std::vector<std::string> more = {"--save-interval", "2", "--save-retain-interval", "6"};
    if (background) more.emplace_back("--async-save");
    EXPECT_EQ(train(flags(name, more)), ExitCode::ok);
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator(folder_ / name)) {
      const std::string file = entry.path().filename();
      if (file.starts_with("iter_")) left.push_back(file);
    }
    std::sort(left.begin(), left.end());
    EXPECT_EQ(left,
              (std::vector<std::string>{"iter_0000006", "iter_0000012", "iter_0000018", "iter_0000020"}));
  }
}

// NaN in chosen steps of 2 micro-batches, counted from 1.
class NanInSteps : public TrainStep {
 public:
  explicit NanInSteps(std::vector<int64_t> steps) : steps_(std::move(steps)) {}
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    StepLoss result = TrainStep::forward_step(model, output, batch);
    if (!batch.training) return result;
    const int64_t step = passes_++ / 2 + 1;
    const bool chosen = std::find(steps_.begin(), steps_.end(), step) != steps_.end();
    if (chosen) result.losses[0].sum = result.losses[0].sum * std::numeric_limits<float>::quiet_NaN();
    return result;
  }

 private:
  std::vector<int64_t> steps_;
  int64_t passes_ = 0;
};

Registry nan_in_steps(const std::vector<int64_t>& steps) {
  return {.train_step = [steps](const Registry::Context&) { return std::make_unique<NanInSteps>(steps); }};
}

TEST_F(Resume, SkipsUpToMaxNanIterations) {
  const std::vector<std::string> two = {"--max-nan-iterations", "2"};
  const std::string text = stdout_of(flags("run", two), 1, nan_in_steps({3, 7, 8}));
  EXPECT_NE(text.find("number of skipped iterations:   1 | number of nan iterations:   1 |"),
            std::string::npos);
  EXPECT_NE(text.find("number of skipped iterations:   2 | number of nan iterations:   2 |"),
            std::string::npos);
  const CheckpointInfo info = open_checkpoint(folder_ / "run" / "iter_0000020");
  EXPECT_NE(info.state.find("\"optimizer_steps\":17"), std::string::npos) << info.state;
  EXPECT_NE(info.state.find("\"consumed_train_samples\":80"), std::string::npos) << info.state;
  EXPECT_NE(info.state.find("\"num_steps\":68"), std::string::npos)
      << "the schedule does not advance: " << info.state;
  for (const auto& [more, steps] :
       {std::pair{two, std::vector<int64_t>{5, 6, 7}}, {std::vector<std::string>{}, {7}}}) {
    try {
      train(flags("three" + std::to_string(steps.size()), more), 1, nan_in_steps(steps));
      FAIL() << "one too many";
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.exit_code(), ExitCode::numerics);
      const std::string what = fault.what();
      EXPECT_NE(what.find("at iteration 7"), std::string::npos) << what;
      EXPECT_NE(what.find(fmt::format("as they were after iteration {}", 7 - steps.size())),
                std::string::npos)
          << what;
    }
  }
}

TEST_F(Resume, NanStopsWithWeightsIntact) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10"})), ExitCode::ok);
  // Every step is saved, so that the last checkpoint has the weights before the failing step.
  ParsedArguments parsed = parse_arguments(training_of(find_family("gpt")),
                                           flags("run", {"--lr", "1e38", "--override-opt_param-scheduler",
                                                         "--clip-grad", "0", "--save-interval", "1"}));
  validate_arguments(parsed, 1);
  const StopSignals signals;
  TrainLoop loop(parsed.args, Mesh(), signals, plain_gpt());
  loop.load();
  try {
    loop.train();
    FAIL() << "a learning rate of 1e38 must blow up";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.exit_code(), ExitCode::numerics);
    EXPECT_NE(std::string(fault.what()).find("weights were left"), std::string::npos) << fault.what();
  }
  const int64_t failed = loop.state().iteration;
  EXPECT_GT(failed, 11);
  const auto saved = tensors("run", static_cast<int>(failed - 1));
  EXPECT_FALSE(fs::exists(folder_ / "run" / fmt::format("iter_{:07d}", failed)));
  size_t compared = 0;
  for (const Parameter& parameter : loop.trainer().engine().parameters().all()) {
    const at::Tensor held = parameter.tensor.detach().contiguous();
    for (const auto& [name, bytes] : saved) {
      if (!name.ends_with(" " + parameter.name)) continue;
      // The padding of the vocabulary is not saved.
      EXPECT_EQ(std::memcmp(held.const_data_ptr(), bytes.data(), bytes.size()), 0) << name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, loop.trainer().engine().parameters().all().size());
}

// A fresh run among checkpoints of a longer one must never resume from them.
TEST_F(Resume, FreshArchivesThePreviousRun) {
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  const auto old = tensors("run", 20);
  testing::internal::CaptureStderr();
  EXPECT_EQ(train(flags("run", {"--fresh", "--exit-interval", "5", "--save-interval", "100"})), ExitCode::ok);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("replaced-1"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "iter_0000020"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "replaced-1" / "iter_0000020" / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "replaced-1" / "iter_0000010"));
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000005"));
  // Resumes the new run.
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  EXPECT_EQ(tensors("run", 20), old);
  EXPECT_EQ(train(flags("run", {"--fresh", "--exit-interval", "5"})), ExitCode::ok);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "replaced-2" / "iter_0000020"));
}

TEST_F(Resume, InterleavedPipelineIsBitwiseEqual) {
  const std::vector<std::string> layout = {"--pp",
                                           "2",
                                           "--num-layers",
                                           "4",
                                           "--vpp",
                                           "2",
                                           "--global-batch-size",
                                           "8",
                                           "--use-distributed-optimizer",
                                           "--overlap-grad-reduce",
                                           "--overlap-param-gather"};
  std::vector<std::string> first = layout;
  first.insert(first.end(), {"--exit-interval", "10"});
  EXPECT_EQ(train(flags("whole", layout), 4), ExitCode::ok);
  EXPECT_EQ(train(flags("halves", first), 4), ExitCode::ok);
  EXPECT_EQ(train(flags("halves", layout), 4), ExitCode::ok);
  EXPECT_EQ(tensors("halves", 20), tensors("whole", 20));
  expect_same_losses("halves", "serial", {"--num-layers", "4", "--global-batch-size", "8"});
}

// Middle stages read no data unless documents reset positions or attention.
TEST_F(Resume, MiddleStagesSeeTheSamePositionsAndDocuments) {
  for (const std::vector<std::string>& documents :
       {std::vector<std::string>{}, {"--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"}}) {
    std::vector<std::string> model = {"--num-layers", "4", "--position-embedding-type", "rope"};
    model.insert(model.end(), documents.begin(), documents.end());
    std::vector<std::string> layout = model;
    layout.insert(layout.end(), {"--pp", "4"});
    const std::string name = documents.empty() ? "plain" : "documents";
    EXPECT_EQ(train(flags(name, layout), 4), ExitCode::ok);
    expect_same_losses(name, name + "_serial", model);
  }
}

TEST_F(Resume, RejectsAnotherModelWithEveryDifference) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10"})), ExitCode::ok);
  try {
    train(flags("run", {"--num-layers", "3", "--hidden-size", "32"}));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    const std::string what = error.what();
    EXPECT_NE(what.find("num_layers"), std::string::npos) << what;
    EXPECT_NE(what.find("hidden_size"), std::string::npos) << what;
  }
}

TEST_F(Resume, AcceptsEquivalentSettings) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "5", "--rotary-base", "500"})), ExitCode::ok);
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10", "--group-query-attention", "--num-query-groups", "2",
                                "--window-size", "-1,0"})),
            ExitCode::ok);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000010"));
}

TEST_F(Resume, RotaryPositionsExtendAndScaleWithFinetune) {
  const std::vector<std::string> rope = {"--position-embedding-type", "rope"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), rope.begin(), rope.end());
    return more;
  };
  EXPECT_EQ(train(flags("run", with({"--exit-interval", "5"}))), ExitCode::ok);
  std::string text =
      stderr_of(flags("run", with({"--exit-interval", "10", "--max-position-embeddings", "32"})));
  EXPECT_NE(text.find("max_position_embeddings is 32, but 8 in"), std::string::npos) << text;
  for (const auto& [name, more] :
       {std::pair{"rotary_base", std::vector<std::string>{"--rotary-base", "500"}},
        std::pair{"rotary_seq_len_interpolation_factor",
                  std::vector<std::string>{"--rotary-seq-len-interpolation-factor", "4"}}}) {
    const std::string failure = failure_of(flags("run", with(more)), 1, {});
    EXPECT_NE(failure.find(name), std::string::npos)
        << "a different function of the same weights: " << failure;
    EXPECT_NE(failure.find("--finetune"), std::string::npos) << failure;
    std::vector<std::string> finetune = with(more);
    finetune.insert(finetune.end(), {"--finetune", "--exit-interval", "2", "--max-position-embeddings", "16",
                                     "--save", (folder_ / name).string()});
    text = stderr_of(flags("run", finetune));
    EXPECT_NE(text.find(std::string(name) + " is "), std::string::npos) << text;
    finetune = with(more);
    finetune.insert(finetune.end(),
                    {"--pretrained-checkpoint", (folder_ / "run").string(), "--exit-interval", "2"});
    text = stderr_of(flags(std::string("from_") + name, finetune));
    EXPECT_NE(text.find(std::string(name) + " is "), std::string::npos) << text;
  }
  const std::string failure =
      failure_of(flags("run", with({"--finetune", "--rotary-percent", "0.5"})), 1, {});
  EXPECT_NE(failure.find("rotary_percent"), std::string::npos) << failure;
}

TEST_F(Resume, MissingCheckpoints) {
  const std::vector<std::string> elsewhere = {"--load", (folder_ / "nothing").string(), "--train-iters", "5"};
  EXPECT_EQ(train(flags("run", elsewhere)), ExitCode::ok);
  std::vector<std::string> strict = elsewhere;
  strict.emplace_back("--exit-on-missing-checkpoint");
  try {
    train(flags("other", strict));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
  }
}

}  // namespace
}  // namespace teratron
