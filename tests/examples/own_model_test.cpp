// The bytes that the operators of the example own_model declare against those that its model allocates.
#include "examples/own_model/reverse.h"
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/plan/activation_memory.h"
#include "teratron/testing/memory_meter.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

constexpr int64_t own_layers = 2, own_source = 96, own_target = 128, own_samples = 4, own_vocabulary = 1000;

MicroBatch random_batch(const BatchSchema& schema) {
  MicroBatch batch{.sample_ids_B = at::arange(own_samples, at::kLong)};
  for (const Column& column : schema) {
    const int64_t rows = column.numel();
    at::Tensor values = at::randint(0, own_vocabulary, {rows, own_samples}, at::kLong);
    if (column.type == ColumnType::f32) values = at::ones({rows, own_samples});
    if (column.kind == Column::Kind::sample) values = at::zeros({own_samples, rows}, at::kLong);
    if (column.kind == Column::Kind::index)
      values = at::arange(rows, at::kLong).unsqueeze(1).expand({rows, own_samples});
    batch.tensors.set(column.name, values);
  }
  return batch;
}

at::Tensor forward(Model& model, const Activations& input, const MicroBatch& batch) {
  const Activations output = model.forward(input, batch, nullptr);
  if (!model.stage().head) return output["memory"];
  const std::vector<LossTerm> losses = model.losses(output, batch);
  return losses[0].sum + losses[1].sum;
}

// After a first step, which allocates gradients.
double allocated(const ModelPlan& plan, const StageSpec& stage, const TensorParallel& parallel,
                 int64_t hidden) {
  ParameterSet parameters({.dtype = at::kFloat, .seed = 3});
  const std::unique_ptr<Model> model = plan.build(StageContext{parameters, stage, parallel});
  const MicroBatch batch = random_batch(plan.batch);
  Activations input;
  if (!stage.embedding) {
    const int64_t rows = own_source / (parallel.sequence_parallel ? parallel.group.size : 1);
    input.set("memory", at::randn({rows, own_samples, hidden}).requires_grad_());
  }
  const at::Tensor first = forward(*model, input, batch);
  first.backward(at::ones_like(first));
  const MemoryMeter meter;
  const at::Tensor output = forward(*model, input, batch);
  // Cross attention saves the received memory, which is not counted; a sent one is not saved.
  const at::Tensor& received = input["memory"];
  return static_cast<double>(meter.live() + (received.defined() ? received.nbytes() : 0) -
                             (stage.head ? 0 : output.nbytes()));
}

void expect_declared(const Arguments& args, const StageSpec& stage, const TensorParallel& parallel) {
  ReverseSettings settings{.encoder_layers = own_layers, .source_length = own_source};
  const ModelPlan plan = reverse_family(settings).plan(args, own_vocabulary);
  const RankBatch batch{.batch = {own_samples, own_target},
                        .dtype = Dtype::f32,
                        .gpu = false,
                        .tensor_parallel = parallel.group.size,
                        .sequence_parallel = parallel.sequence_parallel};
  const double declared = activation_memory(plan.operators(batch, stage)).saved;
  const double ratio = declared / allocated(plan, stage, parallel, *args.hidden_size);
  const std::string name = fmt::format("layers_{}_to_{}_tp_{}_sp_{}_dropout_{}", stage.first_layer,
                                       stage.first_layer + stage.layers, parallel.group.size,
                                       parallel.sequence_parallel, args.hidden_dropout > 0.0);
  testing::Test::RecordProperty(name, fmt::format("{:.4f}", ratio));
  EXPECT_NEAR(ratio, 1.0, 0.01) << name;
}

TEST(OwnModel, SavesWhatItsOperatorsDeclare) {
  at::set_num_threads(1);  // the tensors are tiny
  for (const std::string dropout : {"0", "0.1"}) {
    const Arguments args = validated({"--num-layers", "2", "--seq-length", std::to_string(own_target),
                                      "--hidden-dropout", dropout, "--attention-dropout", dropout})
                               .args;
    const int64_t all = own_layers + *args.num_layers;
    const std::vector<StageSpec> stages = {
        {.layers = all},
        {.layers = own_layers, .head = false},
        {.first_layer = own_layers, .layers = all - own_layers, .embedding = false}};
    for (const StageSpec& stage : stages) {
      expect_declared(args, stage, {});
      for (const bool sequence_parallel : {false, true}) {
        run_ranks(MeshOptions{.tp = 2}, [&](const Mesh& mesh) {
          expect_declared(args, stage, {mesh.group(Axis::tp), sequence_parallel});
        });
      }
    }
  }
}

}  // namespace
}  // namespace teratron
