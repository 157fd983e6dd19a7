// The training loop: log lines, schedules, stopping, files.
#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/models/gpt/data/mock_gpt_dataset.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/settings/component_options.h"
#include "teratron/testing/train_run.h"
#include "teratron/train/guards/replica_check.h"
#include "teratron/train/trainer.h"

namespace teratron {
namespace {

class Loop : public SmallRun {
 protected:
  /// Trains once as a whole in the folder "whole", and in two parts in "halves".
  void expect_halves_train_as_the_whole(const std::vector<std::string>& options) {
    std::vector<std::string> first = options;
    first.insert(first.end(), {"--exit-interval", "10"});
    EXPECT_EQ(train(flags("whole", options)), ExitCode::ok);
    EXPECT_EQ(train(flags("halves", first)), ExitCode::ok);
    EXPECT_EQ(train(flags("halves", options)), ExitCode::ok);
    EXPECT_EQ(tensors("halves", 20), tensors("whole", 20));
  }
};

TEST_F(Loop, PrintsMegatronsLines) {
  expect_in_order(
      stdout_of(flags("run", {"--train-iters", "12"})),
      {"using world size: 1, data-parallel-size: 1, tensor-model-parallel size: 1, pipeline-model-parallel "
       "size: 1 ",
       "------------------------ arguments ------------------------",
       "setting number of micro-batches to constant 2",
       "> setting random seeds to 1234 ...",
       " > padded vocab (size: 41) with 87 dummy tokens (new size: 128)",
       "> learning rate decay style: cosine",
       " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): ",
       "(min, max) time across ranks (ms):",
       "    model-and-optimizer-setup ....",
       "[after dataloaders are built] datetime: ",
       "training ...",
       "[before the start of training step]",
       "iteration        5/      12 | consumed samples:           20 |",
       "validation loss at iteration 5 |",
       "iteration       10/      12 |",
       "saving checkpoint at iteration      10 to ",
       "successfully saved checkpoint from iteration      10 to ",
       "iteration       12/      12 |",
       "[after training is done] datetime: ",
       "validation loss at the end of training for val data | lm loss",
       "successfully saved checkpoint from iteration      12 to ",
       "[ t 1/1, p 1/1 ]",
       "validation loss at the end of training for test data | lm loss"});
}

// GPT on other datasets.
Registry with_datasets(const std::function<Datasets(const DataRequest&)>& datasets) {
  Family family = gpt_family();
  family.datasets = datasets;
  return {.families = {family}};
}

TEST_F(Loop, SavesBeforeAFailingEvaluation) {
  const Registry registry = with_datasets([](const DataRequest& request) {
    Datasets built = build_gpt_datasets(gpt_data_options(request));
    // Fewer samples than the evaluation at the end requires.
    built.valid = std::make_shared<MockGPTDataset>(MockGPTDataset::Options{
        .samples = 2, .sequence_length = 8, .vocab_size = request.tokenizer.vocab_size()});
    return built;
  });
  EXPECT_THROW(train(flags("run", {"--eval-interval", "100"}), 1, registry), UserError);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000020" / "manifest.json"));
}

TEST_F(Loop, ConvertsSamplesAndEpochsToSteps) {
  EXPECT_NE(
      stdout_of(without(flags("samples", {"--train-samples", "23"}), {"--train-iters", "--lr-warmup-iters"}))
          .find("setting training iterations to 5"),
      std::string::npos);
  const Registry registry = with_datasets([](const DataRequest& request) {
    DataRequest small = request;
    small.samples[0] = request.samples[0].value_or(14);  // of one epoch
    return build_gpt_datasets(gpt_data_options(small));
  });
  const std::vector<std::string> epochs =
      without(flags("epochs", {"--num-train-epochs", "2"}), {"--train-iters"});
  EXPECT_NE(stdout_of(epochs, 1, registry).find("setting training iterations to 7"), std::string::npos);
  EXPECT_EQ(log("epochs").steps.size(), 7U);
}

TEST_F(Loop, AutoresumeStopsAndResumes) {
  const std::vector<std::string> args =
      flags("run", {"--adlr-autoresume", "--adlr-autoresume-interval", "4"});
  fs::create_directories(folder_ / "run");
  write_text(folder_ / "run" / "autoresume", "", ExitCode::config);
  EXPECT_EQ(train(args), ExitCode::stopped);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000004"));
  EXPECT_EQ(log("run").end_reason, "autoresume");
  EXPECT_EQ(train(args), ExitCode::ok);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000020"));
}

TEST_F(Loop, WritesProgressLog) {
  EXPECT_EQ(train(flags("run", {"--log-progress", "--exit-interval", "10"})), ExitCode::ok);
  EXPECT_EQ(train(flags("run", {"--log-progress"})), ExitCode::ok);
  const std::string text = read_text(folder_ / "run" / "progress.txt", {});
  EXPECT_EQ(count_of(text, "\tStarting job\n"), 2U) << text;
  expect_in_order(
      text, {"\tJob ID: ", "\t# GPUs: 1\tStarting job\n",
             "\tSaved checkpoint\tIteration: 10\tJob throughput: ", " TFLOP/s/GPU\tCumulative throughput: ",
             "\tFloating-point operations: ", "\tTokens (in billions): 0.00\n", "Iteration: 20"});
}

TEST_F(Loop, UsesCheckpointArgs) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10"})), ExitCode::ok);
  const std::vector<std::string> few = without(flags("run", {"--use-checkpoint-args"}),
                                               {"--num-layers", "--hidden-size", "--num-attention-heads",
                                                "--seq-length", "--max-position-embeddings"});
  const std::vector<std::string> notices = pretrain_arguments(few, 1, plain_gpt()).notices;
  EXPECT_TRUE(std::any_of(notices.begin(), notices.end(), [](const std::string& line) {
    return line.find("num_layers=2") != line.npos;
  })) << notices.size();
  EXPECT_EQ(train(few), ExitCode::ok);
  EXPECT_TRUE(fs::exists(folder_ / "run" / "iter_0000020"));
  std::vector<std::string> other = few;
  other.insert(other.end(), {"--num-layers", "3", "--fresh", "--train-iters", "2", "--lr-warmup-iters", "0"});
  EXPECT_EQ(train(other), ExitCode::ok) << "flags override the checkpoint";
}

TEST_F(Loop, FinetunesFromAPretrainedCheckpointOnlyOnce) {
  EXPECT_EQ(train(flags("base", {"--train-iters", "10"})), ExitCode::ok);
  const std::vector<std::string> args =
      flags("tuned", {"--pretrained-checkpoint", (folder_ / "base").string()});
  const std::vector<std::string> first =
      flags("tuned", {"--pretrained-checkpoint", (folder_ / "base").string(), "--exit-interval", "5"});
  EXPECT_NE(stderr_of(first).find("finetuning from the weights"), std::string::npos);
  EXPECT_EQ(stderr_of(args).find("finetuning"), std::string::npos) << "now it resumes";
  EXPECT_EQ(log("tuned").steps.size(), 20U);
  EXPECT_LT(log("tuned").steps[0].losses[0].second, log("base").steps[0].losses[0].second);
  std::vector<std::string> nowhere = flags("other", {"--pretrained-checkpoint", (folder_ / "none").string()});
  EXPECT_THROW(train(nowhere), UserError);
  std::vector<std::string> again = first;
  again.emplace_back("--fresh");
  EXPECT_NE(stderr_of(again).find("finetuning from the weights"), std::string::npos) << "it starts over";
}

TEST_F(Loop, WarnsOfFinetuningRandomWeights) {
  const std::string random = "warning: finetuning starts from random weights";
  const auto output = [](std::vector<std::string> args, const std::string& flag) {
    args.insert(args.end(), {"--train-iters", "1", "--lr-warmup-iters", "0", flag});
    return stderr_of(args);
  };
  const std::vector<std::string> alone = without(flags("run"), {"--load", "--save"});
  EXPECT_EQ(count_of(output(alone, "--finetune"), random + ": name a model with --pretrained-checkpoint"),
            1U);
  EXPECT_EQ(count_of(output(alone, "--fresh"), "random weights"), 0U) << "a pretraining";
  EXPECT_EQ(count_of(output(flags("run"), "--finetune"), "warning: no checkpoint in"), 1U);
  EXPECT_EQ(count_of(output(flags("run"), "--finetune"), "random weights"), 0U) << "now it has one";
  EXPECT_EQ(train(without(flags("run", {"--train-iters", "1", "--lr-warmup-iters", "0"}), {"--load"})),
            ExitCode::ok)
      << "it goes on";
  std::vector<std::string> fresh = flags("run", {"--finetune"});
  EXPECT_EQ(count_of(output(fresh, "--fresh"), random + ": --fresh leaves out --load"), 1U);
}

TEST_F(Loop, ReportsChangedSettingsOnResume) {
  EXPECT_EQ(train(flags("run", {"--exit-interval", "10"})), ExitCode::ok);
  const std::string notices =
      stderr_of(flags("run", {"--seed", "7", "--hidden-dropout", "0.2", "--exit-interval", "15"}));
  EXPECT_NE(notices.find("seed is 7, but 1234 in the checkpoint"), std::string::npos) << notices;
  EXPECT_NE(notices.find("hidden_dropout is 0.2, but 0.1 in the checkpoint"), std::string::npos);
  EXPECT_EQ(count_of(stderr_of(flags("run", {"--seed", "7", "--hidden-dropout", "0.2"})),
                     " in the checkpoint: training continues"),
            0U);
}

TEST_F(Loop, WarnsOnceOfADamagedCheckpoint) {
  EXPECT_EQ(train(flags("run")), ExitCode::ok);
  fs::resize_file(folder_ / "run" / "iter_0000020" / "shard-00000.safetensors", 100);
  EXPECT_EQ(count_of(stderr_of(flags("run")), "is corrupt"), 1U);
}

TEST_F(Loop, SgdTrainsAndResumes) {
  const std::vector<std::string> sgd = {"--optimizer", "sgd", "--sgd-momentum", "0.8", "--lr", "0.1"};
  expect_halves_train_as_the_whole(sgd);
  EXPECT_LT(log("whole").steps.back().losses[0].second, log("whole").steps[0].losses[0].second);
  try {
    train(flags("halves", {"--train-iters", "30", "--override-opt_param-scheduler"}));
    FAIL() << "Adam cannot resume from SGD's state";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
    EXPECT_NE(std::string(error.what()).find("optimizer"), std::string::npos) << error.what();
  }
}

TEST_F(Loop, SgdWithoutMomentumResumesWithoutState) {
  const std::vector<std::string> sgd = {"--optimizer", "sgd", "--sgd-momentum", "0", "--lr", "0.1"};
  expect_halves_train_as_the_whole(sgd);
  EXPECT_THROW(train(flags("halves", {"--optimizer", "sgd", "--train-iters", "30"})), UserError)
      << "there is no momentum to go on with";
}

TEST_F(Loop, LogsTheDecoupledLearningRate) {
  EXPECT_NE(stdout_of(flags("run", {"--decoupled-lr", "0.02", "--lr-decay-style", "constant",
                                    "--lr-warmup-iters", "0"}))
                .find(" learning rate: 1.000000E-02 | decoupled learning rate: 2.000000E-02 |"),
            std::string::npos);
}

TEST_F(Loop, LogsTimersOfAllRanks) {
  expect_in_order(
      stdout_of(flags("run", {"--timing-log-level", "2", "--timing-log-option", "all"}), 2),
      {"iteration        5/      20 |", "times across ranks (ms):", "  forward-backward:", "     rank  0: ",
       "     rank  1: ", "  batch-generator:", "  forward-compute:", "  optimizer:"});
}

TEST_F(Loop, WritesAChromeTrace) {
  train(flags("run", {"--profile", "--profile-step-start", "2", "--profile-step-end", "4"}));
  const nlohmann::json trace = nlohmann::json::parse(read_text(folder_ / "run" / "trace-rank-0.json", {}));
  size_t backward = 0;
  for (const auto& event : trace.at("traceEvents")) {
    backward += event.value("name", "").find("addmm") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(backward, 0U);
}

// Twice the mean over samples instead of tokens, and a further metric.
class TwiceBySample : public TrainStep {
 public:
  std::vector<std::string> metric_names() const override { return {"half"}; }
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    const at::Tensor losses_SB = model.token_losses(output, batch);
    const at::Tensor sum = losses_SB.mean(0).sum();
    return {.losses = {{2.0 * sum, at::full({}, losses_SB.size(1))}}, .metrics = {0.5 * sum}};
  }
};

TEST_F(Loop, CustomTrainStepChangesTheLossInEveryLayout) {
  const Registry registry = {
      .train_step = [](const Registry::Context&) { return std::make_unique<TwiceBySample>(); }};
  // Adam and clipping cancel a factor of the loss, so the curve is twice the usual one.
  const std::vector<std::string> clipped = {"--clip-grad", "0.01", "--adam-eps", "1e-20"};
  EXPECT_EQ(train(flags("usual", clipped)), ExitCode::ok);
  EXPECT_EQ(train(flags("own", clipped), 1, registry), ExitCode::ok);
  std::vector<std::string> parallel = clipped;
  parallel.insert(parallel.end(), {"--tp", "2", "--sequence-parallel"});
  EXPECT_EQ(train(flags("parallel", parallel), 4, registry), ExitCode::ok);
  const RunLog usual = log("usual");
  for (const char* name : {"own", "parallel"}) {
    const RunLog own = log(name);
    ASSERT_EQ(own.steps.size(), usual.steps.size());
    for (size_t i = 0; i < own.steps.size(); ++i) {
      const double expected = usual.steps[i].losses[0].second;
      EXPECT_NEAR(own.steps[i].losses[0].second, 2 * expected, 1e-3 * expected) << name << " " << i;
      EXPECT_EQ(own.steps[i].losses[1].first, "half");
      EXPECT_NEAR(own.steps[i].losses[1].second, 0.5 * expected, 1e-3 * expected) << name << " " << i;
    }
    EXPECT_NEAR(own.evaluations.at(0).losses.at(0).second, 2 * usual.evaluations.at(0).losses.at(0).second,
                1e-2);
  }
}

// Returns what its constructor was given, of one loss and no metric.
class WrongStep : public TrainStep {
 public:
  explicit WrongStep(std::function<StepLoss(const at::Tensor& sum)> make) : make_(std::move(make)) {}
  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    return make_(model.token_losses(output, batch).sum());
  }

 private:
  std::function<StepLoss(const at::Tensor& sum)> make_;
};

TEST_F(Loop, WrongTrainStepsAreErrorsOfTheirUser) {
  const at::Tensor one = at::ones({});
  const std::pair<const char*, std::function<StepLoss(const at::Tensor&)>> steps[] = {
      {"returned 2 losses and 0 metrics instead of 1 and 0",
       [&](const at::Tensor& sum) { return StepLoss{.losses = {{sum, one}, {sum, one}}}; }},
      {"returned 1 losses and 1 metrics instead of 1 and 0",
       [&](const at::Tensor& sum) { return StepLoss{.losses = {{sum, one}}, .metrics = {one}}; }},
      {"is not one number",
       [&](const at::Tensor& sum) { return StepLoss{.losses = {{sum.expand({3}), one}}}; }}};
  for (const auto& [message, make] : steps) {
    const Registry registry = {
        .train_step = [&](const Registry::Context&) { return std::make_unique<WrongStep>(make); }};
    try {
      train(flags("wrong", {"--fresh"}), 1, registry);
      ADD_FAILURE() << message;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

TEST_F(Loop, CustomLoopMatchesTheProgram) {
  EXPECT_EQ(train(flags("program"), 2), ExitCode::ok);
  const ParsedArguments parsed = pretrain_arguments(flags("own"), 2, plain_gpt());
  run_ranks(2, [&](World& world) {
    const Mesh mesh(mesh_options(parsed.args), world);
    Trainer trainer(parsed.args, mesh, plain_gpt());
    EXPECT_FALSE(trainer.load());
    const auto source = trainer.open(Split::train);
    EXPECT_EQ(trainer.global_batch_size(), 4);
    double loss = 0;
    while (trainer.state().iteration < 20) loss = trainer.train_step(*source).loss;
    const at::Tensor rank = at::full({1, 2}, static_cast<double>(world.rank()));
    EXPECT_EQ(trainer.average(rank).sum().item<double>(), 1.0);
    EXPECT_EQ(trainer.gather(rank).sizes(), (std::vector<int64_t>{2, 2}));
    EXPECT_EQ(trainer.gather(rank)[1][0].item<double>(), 1.0);
    const auto valid = trainer.open(Split::valid);
    EXPECT_LT(trainer.eval_step(*valid, 2).loss, 5.0);
    EXPECT_EQ(trainer.is_last_rank(), world.rank() == 1);
    if (trainer.is_last_rank()) {
      EXPECT_EQ(loss, log("program").steps.back().losses[0].second);
    }
    trainer.save();
  });
  EXPECT_EQ(tensors("own", 20), tensors("program", 20));
}

TEST_F(Loop, CustomLoopSavesAsyncAndSkips) {
  const ParsedArguments parsed =
      pretrain_arguments(flags("own", {"--async-save", "--iterations-to-skip", "3"}), 1, plain_gpt());
  Trainer trainer(parsed.args, Mesh(), plain_gpt());
  const auto source = trainer.open(Split::train);
  std::vector<int64_t> skipped;
  while (trainer.state().iteration < 6) {
    const StepMetrics metrics = trainer.train_step(*source).metrics;
    if (metrics.skipped) skipped.push_back(metrics.iteration);
    if (metrics.iteration != 5) continue;
    EXPECT_FALSE(trainer.save()) << "it has only started";
  }
  EXPECT_EQ(skipped, (std::vector<int64_t>{4}));
  EXPECT_EQ(trainer.state().consumed_train_samples, 24);
  EXPECT_FALSE(trainer.saver().is_saved());
  // The next step may already have committed the save.
  trainer.saver().finish();
  EXPECT_TRUE(fs::exists(folder_ / "own" / "iter_0000005" / "manifest.json"));
  EXPECT_FALSE(trainer.saver().finish());
}

TEST_F(Loop, Bf16GradReduceIsCloseToFp32) {
  EXPECT_EQ(train(flags("exact"), 2), ExitCode::ok);
  for (const char* more : {"--use-distributed-optimizer", "--calculate-per-token-loss"}) {
    EXPECT_EQ(train(flags(more, {"--grad-reduce-in-bf16", more}), 2), ExitCode::ok);
    bool rounded = false;
    for (size_t i = 0; i < 20; ++i) {
      const double exact = log("exact").steps[i].losses[0].second;
      EXPECT_NEAR(log(more).steps[i].losses[0].second, exact, 5e-3 * exact) << more << " " << i;
      rounded = rounded || std::abs(log(more).steps[i].losses[0].second - exact) > 1e-6 * exact;
    }
    EXPECT_TRUE(rounded) << more;
  }
}

TEST_F(Loop, PipelineRanksMayPrecedeDataParallelRanks) {
  const std::vector<std::string> layout = {"--tp", "2", "--pp", "2", "--use-tp-pp-dp-mapping"};
  const std::string text = stdout_of(flags("run", layout), 8);
  EXPECT_NE(text.find("  use_tp_pp_dp_mapping ............................ True"), std::string::npos);
  expect_same_losses("run", "serial", {});
  const ParsedArguments parsed = pretrain_arguments(flags("run", layout), 8, plain_gpt());
  run_ranks(8, [&](World& world) {
    const Mesh mesh(mesh_options(parsed.args), world);
    EXPECT_EQ(mesh.group(Axis::pp).rank, world.rank() / 2 % 2);
    EXPECT_EQ(mesh.group(Axis::dp).rank, world.rank() / 4);
  });
}

TEST_F(Loop, NamesReplicasThatDiffer) {
  const ParsedArguments parsed = pretrain_arguments(flags("run", {"--tp", "2"}), 4, plain_gpt());
  run_ranks(4, [&](World& world) {
    const Mesh mesh(mesh_options(parsed.args), world);
    Trainer trainer(parsed.args, mesh, plain_gpt());
    ParameterSet& parameters = trainer.engine().parameters();
    EXPECT_NO_THROW(check_replicas(parameters, mesh));
    at::Tensor bias = parameters.find("decoder.final_layernorm.bias")->tensor.detach();
    if (world.rank() == 3) bias[0] = 1e-7;
    try {
      check_replicas(parameters, mesh);
      ADD_FAILURE() << "no difference found";
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.exit_code(), ExitCode::numerics);
      EXPECT_NE(std::string(fault.what()).find("decoder.final_layernorm.bias differs"), std::string::npos)
          << fault.what();
    }
  });
}

}  // namespace
}  // namespace teratron
