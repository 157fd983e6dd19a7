// Diagnosis of non-finite numbers: the part of the model and the samples.
#include <limits>

#include <ATen/ATen.h>

#include "teratron/base/file.h"
#include "teratron/settings/component_options.h"
#include "teratron/testing/train_run.h"
#include "teratron/train/trainer.h"

namespace teratron {
namespace {

class NonfiniteDiagnosis : public SmallRun {
 protected:
  // The error of a training whose second step fails after `spoil`.
  std::string message(const std::vector<std::string>& more, int64_t ranks,
                      const std::function<void(Trainer&)>& spoil, const Registry& registry = {}) const {
    const ParsedArguments parsed = pretrain_arguments(flags("run", more), ranks, default_model(registry));
    std::string text;
    const auto body = [&](World& world) {
      Trainer trainer(parsed.args, Mesh(mesh_options(parsed.args), world), default_model(registry));
      const auto source = trainer.open(Split::train);
      trainer.train_step(*source);
      spoil(trainer);
      try {
        trainer.train_step(*source);
      } catch (const Fault& fault) {
        EXPECT_EQ(fault.exit_code(), ExitCode::numerics);
        if (world.rank() == 0) text = fault.what();
      }
    };
    if (ranks == 1) {
      SingleWorld world;
      body(world);
    } else {
      run_ranks(ranks, body);
    }
    return text;
  }
};

void spoil_weight(Trainer& trainer, const std::string& name) {
  if (Parameter* weight = trainer.engine().parameters().find(name)) {
    weight->tensor.detach().view(-1).narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

TEST_F(NonfiniteDiagnosis, NamesTheFirstLayerAndItsSamples) {
  struct Case {
    int64_t ranks;
    std::vector<std::string> flags;
    std::string rank;
  };
  const std::vector<Case> cases = {
      {1, {}, "rank 0"},
      {2, {"--tensor-model-parallel-size", "2", "--sequence-parallel"}, "rank 0"},
      {2, {"--pipeline-model-parallel-size", "2"}, "rank 1"},
      {2, {"--use-distributed-optimizer"}, "rank 0"},
      {1,
       {"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"},
       "rank 0"}};
  for (const Case& c : cases) {
    fs::remove_all(folder_ / "run");
    const std::string text = message(c.flags, c.ranks, [](Trainer& trainer) {
      spoil_weight(trainer, "decoder.layers.1.mlp.linear_fc2.weight");
    });
    // The first step used samples 0 to 3; a micro-batch has two.
    const std::string where = fmt::format(
        "the output of decoder.layers.1 is the first that is not finite ({}, samples 4 to 5)", c.rank);
    EXPECT_NE(text.find(where), std::string::npos) << c.ranks << " ranks: " << text;
    EXPECT_NE(text.find("at iteration 2: the weights were left as they were after iteration 1"),
              std::string::npos)
        << text;
  }
}

TEST_F(NonfiniteDiagnosis, SavesTheTokens) {
  message({"--use-distributed-optimizer"}, 2,
          [](Trainer& trainer) { spoil_weight(trainer, "decoder.layers.0.input_layernorm.weight"); });
  std::vector<std::string> samples;
  for (const int rank : {0, 1}) {
    const fs::path file = folder_ / "run" / fmt::format("nan-iteration-0000002-rank-{}.txt", rank);
    std::istringstream lines(read_text(file, {}));
    for (std::string line; std::getline(lines, line);) samples.push_back(line);
  }
  ASSERT_EQ(samples.size(), 4U) << "the global batch";
  const ParsedArguments parsed = pretrain_arguments(flags("other"), 1, plain_gpt());
  Trainer trainer(parsed.args, Mesh(), plain_gpt());
  const auto source = trainer.open(Split::train);
  trainer.train_step(*source);
  for (int64_t i = 0; i < 2; ++i) {
    const at::Tensor tokens_BS = source->next()["tokens"].t().contiguous();
    for (int64_t sample = 0; sample < 2; ++sample) {
      const auto* ids = tokens_BS[sample].const_data_ptr<int64_t>();
      EXPECT_EQ(samples[i * 2 + sample], fmt::format("{}", fmt::join(ids, ids + tokens_BS.size(1), " ")));
    }
  }
}

TEST_F(NonfiniteDiagnosis, NamesSomeOfManyFiles) {
  const std::string text = message({"--global-batch-size", "20"}, 10, [](Trainer& trainer) {
    spoil_weight(trainer, "decoder.layers.0.input_layernorm.weight");
  });
  EXPECT_NE(text.find("rank-0.txt, "), std::string::npos) << text;
  EXPECT_NE(text.find("rank-7.txt and 2 more, for `teratron logits`"), std::string::npos) << text;
}

// The loss, or only its gradient, is not finite in some calls.
class BadLoss : public TrainStep {
 public:
  BadLoss(int64_t first_call, int64_t calls, bool only_gradient)
      : first_(first_call), end_(first_call + calls), only_gradient_(only_gradient) {}

  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    const at::Tensor losses_SB = model.token_losses(output, batch);
    StepLoss result{.losses = {masked_loss(losses_SB, batch["loss_mask"])}};
    const int64_t call = call_++;
    if (call < first_ || call >= end_) return result;
    // sqrt(0) = 0 with an infinite derivative.
    const at::Tensor spoiled = only_gradient_ ? (losses_SB * 0.0).sqrt().sum() : losses_SB.sum().log() / 0.0;
    result.losses[0].sum = result.losses[0].sum + spoiled;
    return result;
  }

 private:
  int64_t first_, end_, call_ = 0;
  bool only_gradient_;
};

Registry with_loss(int64_t first_call, int64_t calls, bool only_gradient) {
  return {.train_step = [=](const Registry::Context&) {
    return std::make_unique<BadLoss>(first_call, calls, only_gradient);
  }};
}

TEST_F(NonfiniteDiagnosis, ReportsATransientFault) {
  const auto nothing = [](Trainer&) {};
  std::string text = message({}, 1, nothing, with_loss(2, 1, false));
  EXPECT_NE(text.find("Computed once more, everything was finite: suspect the hardware"), std::string::npos)
      << text;
  text = message({}, 1, nothing, with_loss(2, 4, false));
  EXPECT_NE(text.find("the output of the loss is the first"), std::string::npos) << text;
}

TEST_F(NonfiniteDiagnosis, NamesTheGradientIfOutputsAreFinite) {
  const std::string text = message({}, 1, [](Trainer&) {}, with_loss(2, 4, true));
  EXPECT_NE(text.find("the gradient of decoder.final_layernorm.bias is not finite, all outputs are (rank 0)"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace teratron
