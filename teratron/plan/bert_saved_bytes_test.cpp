// The bytes that a BERT's operators declare against those that a built one allocates.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/models/bert/bert_classifier.h"
#include "teratron/models/bert/bert_operators.h"
#include "teratron/models/bert/data/bert_dataset.h"
#include "teratron/plan/activation_memory.h"
#include "teratron/testing/bert_models.h"
#include "teratron/testing/memory_meter.h"

namespace teratron {
namespace {

constexpr int64_t sequence = 128, samples = 4;
const int64_t masked = most_predictions(sequence, 0.15);

BertConfig wide(BertConfig config) {
  config.hidden = 64;
  config.ffn_hidden = 256;
  config.kv_channels = 16;
  config.vocabulary = 1000;
  config.padded_vocabulary = 1024;
  config.max_positions = sequence;
  return config;
}

MicroBatch wide_batch(const BertConfig& config) {
  const auto draw = [](int64_t bound, std::vector<int64_t> shape) {
    return at::randint(0, bound, shape, at::kLong);
  };
  std::vector<int32_t> bounds;
  for (int32_t sample = 0; sample < samples; ++sample) {
    for (const int32_t start : {0, 100}) bounds.push_back(sample * static_cast<int32_t>(sequence) + start);
  }
  bounds.push_back(static_cast<int32_t>(samples * sequence));
  const at::Tensor index_SB = at::arange(sequence, at::kLong).unsqueeze(1).expand({sequence, samples});
  return {.tensors = {{"tokens", draw(config.vocabulary, {sequence, samples})},
                      {"types", draw(2, {sequence, samples})},
                      {"sequence_index", index_SB},
                      {"cu_seqlens", at::tensor(bounds, at::kInt)},
                      {"masked_positions", draw(100, {samples, masked})},
                      {"masked_labels", draw(config.vocabulary, {samples, masked})},
                      {"masked_loss_mask", at::ones({samples, masked})},
                      {"is_random", draw(2, {samples, 1})}},
          .sample_ids_B = at::arange(samples, at::kLong)};
}

at::Tensor forward(Model& model, const Activations& input, const MicroBatch& batch) {
  const Activations output = model.forward(input, batch, nullptr);
  if (!model.stage().head) return output["hidden"];
  at::Tensor total;
  for (const LossTerm& term : model.losses(output, batch))
    total = total.defined() ? total + term.sum : term.sum;
  return total;
}

struct SavedAndPeak {
  double saved = 0.0, peak = 0.0;
};

// Measures the second step; the first allocates gradients.
template <typename Build>
SavedAndPeak allocated_by(const Build& build, const BertConfig& config, const StageSpec& stage,
                          const TensorParallel& parallel) {
  ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
  const std::unique_ptr<Model> built = build(StageContext{parameters, stage, parallel});
  Model& model = *built;
  MicroBatch batch = wide_batch(config);
  batch.tensors.set("labels", at::zeros({samples, 1}, at::kLong));
  Activations input;
  if (!stage.embedding) {
    const int64_t rows = sequence / (parallel.sequence_parallel ? parallel.group.size : 1);
    input.set("hidden", at::randn({rows, samples, config.hidden}).requires_grad_());
  }
  const auto backward = [](const at::Tensor& output) { output.backward(at::ones_like(output)); };
  backward(forward(model, input, batch));
  const MemoryMeter meter;
  const at::Tensor output = forward(model, input, batch);
  const at::Tensor& received = input["hidden"];
  const auto saved = static_cast<double>(meter.live() + (received.defined() ? received.nbytes() : 0) -
                                         (stage.head ? 0 : output.nbytes()));
  backward(output);
  return {saved, static_cast<double>(meter.peak())};
}

SavedAndPeak allocated(const BertConfig& config, const StageSpec& stage, const TensorParallel& parallel) {
  const auto build = [&config](const StageContext& part) { return std::make_unique<Bert>(config, part); };
  return allocated_by(build, config, stage, parallel);
}

ActivationMemory declared(const BertConfig& config, const StageSpec& stage, const TensorParallel& parallel) {
  const BatchSchema schema =
      bert_schema({.sequence_length = sequence, .predictions = masked, .sentence_pairs = config.binary_head});
  const RankBatch batch{.batch = {samples, sequence},
                        .dtype = Dtype::f32,
                        .gpu = false,
                        .tensor_parallel = parallel.group.size,
                        .sequence_parallel = parallel.sequence_parallel};
  return activation_memory(bert_operators(config, schema)(batch, stage));
}

TEST(BertOperators, SaveWhatTheModelSaves) {
  at::set_num_threads(1);  // the tensors are tiny
  for (const BertVariant& variant : bert_variants()) {
    const BertConfig config = wide(variant.config);
    const StageSpec whole{.layers = config.layers};
    const SavedAndPeak real = allocated(config, whole, {});
    const ActivationMemory ours = declared(config, whole, {});
    EXPECT_NEAR(ours.saved / real.saved, 1.0, 0.002) << variant.name;
    EXPECT_NEAR(ours.peak / real.peak, 1.0, config.attention_dropout == 0.0 ? 0.01 : 0.07) << variant.name;
  }
}

TEST(BertOperators, SaveWhatAClassifierSaves) {
  at::set_num_threads(1);
  const BertConfig config = wide(small_bert_config());
  const ClassifierOptions options{.outputs = 3};
  const BatchSchema schema = bert_classifier_schema({.sequence_length = sequence, .classifier = options});
  const StageSpec whole{.layers = config.layers};
  const auto build = [&](const StageContext& part) {
    return std::make_unique<BertClassifier>(config, options, part);
  };
  const SavedAndPeak real = allocated_by(build, config, whole, {});
  const RankBatch batch{.batch = {samples, sequence}, .dtype = Dtype::f32, .gpu = false};
  const ActivationMemory ours =
      activation_memory(bert_classifier_plan(config, options, schema).operators(batch, whole));
  EXPECT_NEAR(ours.saved / real.saved, 1.0, 0.002);
  EXPECT_NEAR(ours.peak / real.peak, 1.0, 0.01);
}

TEST(BertOperators, SaveTheirStageAndShard) {
  const BertConfig config = wide(small_bert_config());
  const std::vector<StageSpec> stages = {{.layers = 2, .head = false},
                                         {.first_layer = 2, .layers = 2, .embedding = false}};
  for (const StageSpec& stage : stages) {
    for (const bool sequence_parallel : {false, true}) {
      run_ranks(MeshOptions{.tp = 2}, [&](const Mesh& mesh) {
        const TensorParallel parallel{mesh.group(Axis::tp), sequence_parallel};
        const SavedAndPeak real = allocated(config, stage, parallel);
        EXPECT_NEAR(declared(config, stage, parallel).saved / real.saved, 1.0, 0.005)
            << "stage from layer " << stage.first_layer << ", sequence parallel " << sequence_parallel;
      });
    }
  }
}

}  // namespace
}  // namespace teratron
