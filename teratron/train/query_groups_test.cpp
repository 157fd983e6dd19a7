// Fewer key/value heads than tensor-parallel ranks: layouts against one rank, and checkpoints between them.
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/testing/bert_models.h"
#include "teratron/testing/layouts.h"
#include "teratron/testing/models.h"
#include "teratron/testing/t5_models.h"
#include "teratron/train/checkpoint/model_checkpoint.h"
#include "teratron/train/guards/replica_check.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

// Groups on 2 and on 4 ranks each.
const std::vector<Layout> shared_layouts = {
    {.tp = 4},
    {.tp = 4, .sequence_parallel = true},
    {.tp = 4, .dp = 2, .microbatches = 2, .sharded = true, .average_in_collective = true},
    {.tp = 4,
     .pp = 2,
     .dp = 2,
     .microbatches = 2,
     .bucket_size = 100,
     .sequence_parallel = true,
     .sharded = true,
     .overlap_param_gather = true,
     .late = true},
    {.tp = 4, .cp = 2},
    {.tp = 2, .cp = 2, .sequence_parallel = true}};

std::vector<TestVariant> shared_variants() {
  std::vector<TestVariant> all;
  const auto add = [&all](const char* name, GPTConfig config, int64_t groups) -> GPTConfig& {
    config.query_groups = groups;
    config.layers = 2;
    return all.emplace_back(TestVariant{name, std::move(config)}).config;
  };
  add("multi-query GPT", gpt2_config(), 1);
  add("GPT of two groups", gpt2_config(), 2).position = PositionEmbedding::alibi;
  add("multi-query Llama", llama_config(), 1);
  GPTConfig& qwen = add("Llama of two groups with biases", llama_config(), 2);
  qwen.qkv_bias = true;
  qwen.qk_norm = true;
  GPTConfig& olmo = add("norms of all heads", llama_config(), 2);
  olmo.norm_outputs = olmo.qk_norm = olmo.qk_norm_all_heads = true;
  add("multi-query norms of all heads", olmo, 1);
  return all;
}

TEST(SharedQueryGroups, MatchOneRank) {
  for (const auto& [name, config] : shared_variants()) {
    const Gradients expected = gradients_of(config, {}, {}, at::kDouble);
    const Gradients expected_f32 = gradients_of(config, {}, {}, at::kFloat);
    for (const Layout& layout : shared_layouts) {
      SCOPED_TRACE(fmt::format("{}, {}", name, to_string(layout)));
      expect_same(gradients_of(config, layout, {}, at::kDouble), expected, 1e-12);
      if (layout.dp == 1) expect_same(gradients_of(config, layout, {}, at::kFloat), expected_f32, 1e-5);
    }
  }
}

TEST(SharedQueryGroups, OfEncodersMatchOneRank) {
  BertConfig bert = small_bert_config();
  bert.query_groups = 1;
  T5Config t5 = small_t5_config();
  t5.encoder.query_groups = 1;
  t5.decoder.query_groups = 2;
  for (const TestModel& model : {bert_model(bert), t5_model(t5)}) {
    const Gradients expected = gradients_of(model, {}, at::kDouble);
    for (const Layout& layout :
         {Layout{.tp = 4, .sequence_parallel = true}, Layout{.tp = 2, .dp = 2, .sharded = true}}) {
      SCOPED_TRACE(to_string(layout));
      expect_same(gradients_of(model, layout, at::kDouble), expected, 1e-12);
    }
  }
}

class SharedQueryGroupsRun : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("teratron_groups_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Visit {
    Layout layout;
    at::ScalarType dtype = at::kDouble;
    std::optional<int64_t> load = {};
    int64_t steps = 0;  // until this one
    std::optional<int64_t> save = {};
  };
  struct Outcome {
    std::vector<StepResult> steps;
    std::map<std::string, at::Tensor> tensors;  // weights, optimizer state
  };
  Outcome visit(const GPTConfig& config, const std::optional<LoraOptions>& lora, const Visit& visit) const {
    Outcome outcome;
    GlobalTensors global;
    std::mutex mutex;
    run_layout(visit.layout, [&](const Mesh& mesh) {
      EngineOptions options = engine_options(config, visit.layout, visit.dtype);
      options.lora = lora;
      TrainEngine engine(options, mesh);
      if (visit.load) {
        load_model(engine, {.directory = folder_, .iteration = visit.load});
        engine.optimizer().set_steps(*visit.load);
      }
      std::vector<StepResult> steps;
      for (int64_t step = visit.load.value_or(0); step < visit.steps; ++step)
        steps.push_back(train_step(engine, visit.layout, {}, step, {.lr = 1e-2, .weight_decay = 0.1}).wait());
      for (const StateTensor& part : weights(engine)) global.add(part);
      for (const StateTensor& part : engine.optimizer().state()) global.add(part);
      EXPECT_NO_THROW(check_replicas(engine.parameters(), mesh));
      if (visit.save) save_model(engine, {.directory = folder_, .iteration = *visit.save});
      const std::lock_guard lock(mutex);
      outcome.steps = steps;
    });
    outcome.tensors = global.tensors();
    return outcome;
  }

  static void expect_close(const Outcome& actual, const Outcome& expected) {
    ASSERT_EQ(actual.steps.size(), expected.steps.size());
    for (size_t i = 0; i < expected.steps.size(); ++i) {
      EXPECT_NEAR(actual.steps[i].loss, expected.steps[i].loss, 1e-10);
      EXPECT_NEAR(actual.steps[i].grad_norm, expected.steps[i].grad_norm, 1e-10);
    }
    ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : expected.tensors)
      EXPECT_LT(relative_error(actual.tensors.at(name), tensor), 1e-9) << name;
  }

  fs::path folder_;
};

const LoraOptions qkv_lora{
    .rank = 3, .alpha = 6.0, .targets = {"linear_q", "linear_k", "linear_v", "linear_proj"}};

TEST_F(SharedQueryGroupsRun, AdaptersTrainAsOnOneRank) {
  for (const int64_t groups : {1, 2}) {
    GPTConfig config = llama_config();
    config.query_groups = groups;
    LoraOptions whole = qkv_lora;
    whole.targets = {"linear_qkv"};
    for (const LoraOptions& lora : {qkv_lora, whole}) {
      const Outcome expected = visit(config, lora, {.layout = {}, .steps = 3});
      for (const Layout& layout :
           {Layout{.tp = 4}, Layout{.tp = 4, .dp = 2, .sequence_parallel = true, .sharded = true}}) {
        SCOPED_TRACE(fmt::format("{} groups, {}", groups, to_string(layout)));
        expect_close(visit(config, lora, {.layout = layout, .steps = 3}), expected);
      }
    }
  }
}

TEST_F(SharedQueryGroupsRun, ResumeInOtherLayouts) {
  const std::vector<Layout> layouts = {{},
                                       {.tp = 2, .dp = 2, .sharded = true},
                                       {.tp = 4, .dp = 2, .bucket_size = 300, .sharded = true},
                                       {.tp = 4, .sequence_parallel = true}};
  int64_t iteration = 2;
  for (const int64_t groups : {1, 2}) {
    GPTConfig config = llama_config();
    config.query_groups = groups;
    config.qkv_bias = true;
    const Outcome expected = visit(config, {}, {.layout = {}, .steps = 4});
    for (const Layout& writer : layouts) {
      fs::remove_all(folder_);
      fs::create_directories(folder_);
      const Outcome written = visit(config, {}, {.layout = writer, .steps = 2, .save = iteration});
      const fs::path saved = folder_ / fmt::format("iter_{:07d}", iteration);
      EXPECT_GT(verify_checkpoint(saved), 0) << "each element once";
      for (const Layout& reader : layouts) {
        SCOPED_TRACE(fmt::format("{} groups, {} -> {}", groups, to_string(writer), to_string(reader)));
        const Outcome read = visit(config, {}, {.layout = reader, .load = iteration});
        for (const auto& [name, tensor] : written.tensors)
          EXPECT_TRUE(at::equal(read.tensors.at(name), tensor)) << name;
        Outcome resumed = visit(config, {}, {.layout = reader, .load = iteration, .steps = 4});
        resumed.steps.insert(resumed.steps.begin(), written.steps.begin(), written.steps.end());
        expect_close(resumed, expected);
      }
    }
  }
}

TEST_F(SharedQueryGroupsRun, ReplicasThatDifferAreFound) {
  GPTConfig config = llama_config();
  config.query_groups = 1;
  const Layout layout{.tp = 2};
  run_layout(layout, [&](const Mesh& mesh) {
    TrainEngine engine(engine_options(config, layout, at::kFloat), mesh);
    const Parameter& qkv = *engine.parameters().find("decoder.layers.1.self_attention.linear_qkv.weight");
    const at::Tensor last = qkv.tensor.detach().view(-1).slice(0, -1);
    if (mesh.rank() == 1) last.add_(1.0);
    try {
      check_replicas(engine.parameters(), mesh);
      ADD_FAILURE() << "not found";
    } catch (const Fault& fault) {
      EXPECT_NE(std::string(fault.what()).find("linear_qkv.weight differs"), std::string::npos)
          << fault.what();
    }
  });
}

}  // namespace
}  // namespace teratron
