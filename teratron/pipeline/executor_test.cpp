#include "teratron/pipeline/executor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"

namespace teratron {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// A stage multiplies by its virtual stage's index plus 2; the last one sums.
class Multiplication {
 public:
  Multiplication(const Mesh& mesh, const ScheduleShape& shape)
      : stage_(mesh.group(Axis::pp).rank), shape_(shape) {}

  at::Tensor forward(const Action& action, const at::Tensor& input) {
    // Leaves at the start of the model, to check their gradients.
    at::Tensor x = input;
    if (!x.defined()) {
      x = at::full({2, 3}, static_cast<double>(action.microbatch + 1)).requires_grad_(!shape_.forward_only);
      leaves[action.microbatch] = x;
    }
    const at::Tensor y = x * static_cast<double>(action.chunk * shape_.stages + stage_ + 2);
    const bool ends = stage_ == shape_.stages - 1 && action.chunk == shape_.chunks - 1;
    if (ends) return losses[action.microbatch] = y.sum();
    outputs_.emplace_back(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(y.storage().unsafeGetStorageImpl()));
    std::erase_if(outputs_, [](const WeakStorage& output) { return output.expired(); });
    most_outputs = std::max(most_outputs, outputs_.size());
    return y;
  }

  std::map<int64_t, at::Tensor> leaves;
  std::map<int64_t, at::Tensor> losses;
  size_t most_outputs = 0;

 private:
  int64_t stage_;
  ScheduleShape shape_;
  std::vector<WeakStorage> outputs_;
};

void run(const ScheduleShape& shape) {
  double product = 1.0;
  for (int64_t i = 0; i < shape.stages * shape.chunks; ++i) product *= static_cast<double>(i + 2);
  run_ranks(MeshOptions{.pp = shape.stages}, [&](const Mesh& mesh) {
    std::optional<at::NoGradGuard> evaluation;
    if (shape.forward_only) evaluation.emplace();
    Multiplication stage(mesh, shape);
    const StageFunctions functions{
        [&](const Action& action, const at::Tensor& input) { return stage.forward(action, input); }, {}};
    run_schedule(schedule(mesh.group(Axis::pp).rank, shape), mesh.pipeline_links(), functions,
                 {.sizes = {2, 3}, .options = at::TensorOptions().dtype(at::kFloat)});
    for (const auto& [microbatch, loss] : stage.losses) {
      EXPECT_EQ(loss.item<double>(), 6.0 * static_cast<double>(microbatch + 1) * product);
    }
    for (const auto& [microbatch, leaf] : stage.leaves) {
      EXPECT_TRUE(shape.forward_only || at::equal(leaf.grad(), at::full({2, 3}, product)));
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
