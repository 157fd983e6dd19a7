// What ranks that share tensors must have in common: forms of tied tensors, buckets of replicas.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/optim/param_and_grad_buffer.h"

namespace teratron {
namespace {

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
};
using TensorsOf = std::function<std::vector<Tensor>(const Mesh&)>;

/// The one error of all ranks, or "".
std::string error_of(const MeshOptions& options, const TensorsOf& tensors_of) {
  std::mutex mutex;
  std::set<std::string> errors;
  run_ranks(options, [&](const Mesh& mesh) {
    ParameterSet set({.seed = 3});
    for (const auto& [name, shape, dtype] : tensors_of(mesh))
      set.create(name, {.shard = Shard::replicated(shape), .init = Init::normal(1.0), .dtype = dtype});
    std::string text;
    try {
      const ParamAndGradBuffers buffers(set, mesh, {.bucket_size = 64});
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      text = error.what();
    }
    const std::lock_guard lock(mutex);
    errors.insert(text);
  });
  EXPECT_EQ(errors.size(), 1U);
  return *errors.begin();
}

void expect_error(const std::string& actual, const std::string& expected) {
  EXPECT_NE(actual.find(expected), std::string::npos) << actual << "\nlacks\n" << expected;
}

/// An embedding on the first and the last of three stages, which may differ there.
TensorsOf tied(const Tensor& on_last) {
  return [on_last](const Mesh& mesh) {
    const int64_t stage = mesh.group(Axis::pp).rank;
    std::vector<Tensor> tensors = {{fmt::format("layers.{}", stage), {4}}};
    if (stage == 0) tensors.push_back({"embedding", {8, 4}});
    if (stage == 2) tensors.push_back(on_last);
    return tensors;
  };
}

TEST(SharedTensors, OfStagesHaveOneShapeAndDtype) {
  const MeshOptions layout{.tp = 2, .pp = 3, .dp = 2};
  EXPECT_EQ(error_of(layout, tied({"embedding", {8, 4}})), "");
  EXPECT_EQ(error_of(layout, tied({"output", {9, 4}})), "");
  expect_error(error_of(layout, tied({"embedding", {9, 4}})),
               "ranks hold tensors of one name that differ: 'embedding' is [8, 4] fp32 on rank 0 (pipeline "
               "stage 0), but [9, 4] fp32 on rank 8 (pipeline stage 2)");
  expect_error(error_of(layout, tied({"embedding", {4, 8}})), "but [4, 8] fp32 on rank 8");
  expect_error(error_of(layout, tied({"embedding", {8, 4}, at::kBFloat16})),
               "'embedding' is [8, 4] fp32 on rank 0 (pipeline stage 0), but [8, 4] bf16 on rank 8");
}

TEST(SharedTensors, OfStagesAreInEveryPipeline) {
  const TensorsOf tensors_of = [](const Mesh& mesh) {
    const int64_t stage = mesh.group(Axis::pp).rank, tp = mesh.group(Axis::tp).rank;
    std::vector<Tensor> tensors = {{fmt::format("layers.{}", stage), {4}}};
    if (stage == 0 || tp == 0) tensors.push_back({"embedding", {8, 4}});
    return tensors;
  };
  expect_error(
      error_of({.tp = 2, .pp = 2}, tensors_of),
      "'embedding' is shared by 2 pipeline stages, but rank 1 (pipeline stage 0) is in a pipeline that "
      "holds it in 1");
}

TEST(SharedTensors, OfTensorParallelRanksHaveOneShape) {
  expect_error(
      error_of({.tp = 2}, [](const Mesh& mesh) { return std::vector<Tensor>{{"norm", {4 + mesh.rank()}}}; }),
      "'norm' is [4] fp32 on rank 0 (pipeline stage 0), but [5] fp32 on rank 1 (pipeline stage 0)");
}

/// The third of four replicas has skipped a layer.
TEST(SharedTensors, OfReplicasAreInTheSameBuckets) {
  const TensorsOf tensors_of = [](const Mesh& mesh) {
    std::vector<Tensor> tensors;
    for (int64_t layer = 0; layer < 4; ++layer) {
      if (mesh.group(Axis::dp).rank == 2 && layer == 1) continue;
      tensors.push_back({fmt::format("layers.{}.weight", layer), {128}});
    }
    return tensors;
  };
  const std::string error = error_of({.tp = 2, .dp = 4}, tensors_of);
  expect_error(error,
               "ranks that sum gradients have different parameters: bucket 2: rank 0 has layers.1.weight");
  expect_error(error, "rank 4 has layers.0.weight of 1 parameters");
}

}  // namespace
}  // namespace teratron
