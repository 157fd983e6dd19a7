#include "teratron/pipeline/executor.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"

namespace teratron {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

using Tensors = std::vector<at::Tensor>;

// Micro-batches differ in shape.
int64_t rows_of(int64_t microbatch) {
  return 2 + microbatch % 3;
}

// A stage multiplies by its virtual stage's index plus 2; the last one sums. Beside the product travel the
// micro-batch's number, without a gradient, and the first stage's tensor, which every stage adds once.
class Multiplication {
 public:
  Multiplication(const Mesh& mesh, const ScheduleShape& shape)
      : stage_(mesh.group(Axis::pp).rank), shape_(shape) {}

  Tensors forward(const Action& action, const Tensors& inputs) {
    // Leaves at the start of the model, to check their gradients.
    at::Tensor x, number, first;
    if (inputs.empty()) {
      const auto value = static_cast<double>(action.microbatch + 1);
      x = at::full({rows_of(action.microbatch), 3}, value).requires_grad_(!shape_.forward_only);
      leaves[action.microbatch] = first = x;
      number = at::tensor({action.microbatch});
    } else {
      x = inputs[0];
      number = inputs[1];
      first = inputs[2];
      EXPECT_EQ(number.item<int64_t>(), action.microbatch);
      EXPECT_FALSE(number.requires_grad());
    }
    const at::Tensor y = x * static_cast<double>(action.chunk * shape_.stages + stage_ + 2) + first;
    const bool ends = stage_ == shape_.stages - 1 && action.chunk == shape_.chunks - 1;
    if (ends) return {losses[action.microbatch] = y.sum()};
    outputs_.emplace_back(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(y.storage().unsafeGetStorageImpl()));
    std::erase_if(outputs_, [](const WeakStorage& output) { return output.expired(); });
    most_outputs = std::max(most_outputs, outputs_.size());
    return {y, number, first};
  }

  std::map<int64_t, at::Tensor> leaves;
  std::map<int64_t, at::Tensor> losses;
  size_t most_outputs = 0;

 private:
  int64_t stage_;
  ScheduleShape shape_;
  std::vector<WeakStorage> outputs_;
};

ChunkMessages messages_of(const Mesh& mesh, const ScheduleShape& shape, const Action& action) {
  const auto f32 = at::TensorOptions().dtype(at::kFloat);
  const std::vector<int64_t> sizes = {rows_of(action.microbatch), 3};
  const std::vector<MessageShape> all = {
      {sizes, f32}, {{1}, f32.dtype(at::kLong), /*differentiable=*/false}, {sizes, f32}};
  const int64_t stage = mesh.group(Axis::pp).rank;
  ChunkMessages messages{all, all};
  if (stage == 0 && action.chunk == 0) messages.in.clear();
  if (stage == shape.stages - 1 && action.chunk == shape.chunks - 1) messages.out.clear();
  return messages;
}

void run(const ScheduleShape& shape) {
  double product = 1.0;
  for (int64_t i = 0; i < shape.stages * shape.chunks; ++i)
    product = product * static_cast<double>(i + 2) + 1.0;
  run_ranks(MeshOptions{.pp = shape.stages}, [&](const Mesh& mesh) {
    std::optional<at::NoGradGuard> evaluation;
    if (shape.forward_only) evaluation.emplace();
    Multiplication stage(mesh, shape);
    const StageFunctions functions{
        [&](const Action& action, const Tensors& inputs) { return stage.forward(action, inputs); },
        {},
        [&](const Action& action) { return messages_of(mesh, shape, action); }};
    run_schedule(schedule(mesh.group(Axis::pp).rank, shape), mesh.pipeline_links(), functions);
    for (const auto& [microbatch, loss] : stage.losses) {
      const auto elements = static_cast<double>(3 * rows_of(microbatch));
      EXPECT_EQ(loss.item<double>(), elements * static_cast<double>(microbatch + 1) * product);
    }
    for (const auto& [microbatch, leaf] : stage.leaves) {
      EXPECT_TRUE(shape.forward_only || at::equal(leaf.grad(), at::full({rows_of(microbatch), 3}, product)));
    }
    EXPECT_EQ(stage.losses.size() + stage.leaves.size() > 0,
              mesh.group(Axis::pp).rank == 0 || mesh.group(Axis::pp).rank == shape.stages - 1);
    // The one just computed and the one being sent.
    EXPECT_LE(stage.most_outputs, 2U);
  });
}

TEST(Executor, DeliversActivationsAndGradients) {
  for (const bool early : {false, true}) {
    for (const bool forward_only : {false, true}) {
      ScheduleShape shape{
          .stages = 3, .microbatches = 7, .forward_only = forward_only, .early_receives = early};
      run(shape);
      shape.stages = 1;
      run(shape);
      shape = {
          .stages = 2, .chunks = 3, .microbatches = 6, .forward_only = forward_only, .early_receives = early};
      run(shape);
      shape.microbatch_group = 3;
      run(shape);
    }
  }
}

}  // namespace
}  // namespace teratron
