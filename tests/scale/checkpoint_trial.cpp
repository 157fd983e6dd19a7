#include "tests/scale/checkpoint_trial.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/ckpt/index_ranges.h"

namespace teratron {

namespace {

constexpr int64_t kTp = 8, kLayers = 16, kWhole = 4;
constexpr uint32_t kSeed = 7;
constexpr int64_t kIteration = 3;

/// This rank's share of the optimizer's state of a tensor.
void add_state(TestTensors& tensors, const std::string& name, const Shard& shard, int64_t part,
               int64_t parts) {
  const int64_t numel = local_numel(shard);
  const int64_t begin = numel * part / parts, end = numel * (part + 1) / parts;
  if (begin < end) tensors.add_range("optimizer.exp_avg." + name, shard, begin, end);
}

}  // namespace

TestTensors CheckpointTrial::tensors() const {
  const int64_t ranks = group_.size(), rank = group_.rank();
  const int64_t tp_rank = rank % kTp, dp_rank = rank / kTp, dp = ranks / kTp;
  TestTensors tensors;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = fmt::format("layers.{}", layer);
    const Shard columns = Shard::split({32, 16}, 0, kTp, tp_rank),
                rows = Shard::split({16, 32}, 1, kTp, tp_rank);
    tensors.add(name + ".fc1.weight", columns, Dtype::bf16);
    tensors.add(name + ".fc2.weight", rows, Dtype::bf16);
    tensors.add(name + ".norm.weight", Shard::replicated({16}), Dtype::bf16);
    add_state(tensors, name + ".fc1.weight", columns, dp_rank, dp);
    add_state(tensors, name + ".fc2.weight", rows, dp_rank, dp);
  }
  for (int64_t expert = 0; expert < kWhole; ++expert)
    tensors.add(fmt::format("experts.{}.weight", expert), Shard::split({ranks, 4}, 0, ranks, rank));
  return tensors;
}

void CheckpointTrial::save(int64_t iteration, const Retention& retain) {
  TestTensors all = tensors();
  all.fill(kSeed);
  // A manifest of several files, which so few tensors do not need.
  save_checkpoint({.directory = folder_,
                   .iteration = iteration,
                   .tensors = all.list(),
                   .retain = retain,
                   .manifest_file_bytes = int64_t{16} << 10,
                   .removal = removal_},
                  group_);
}

void CheckpointTrial::save() {
  save(kIteration, {});
}

void CheckpointTrial::replace() {
  save(kIteration + 1, {.last = 1});
}

void CheckpointTrial::expect_saved(const TestTensors& tensors) const {
  if (const std::string difference = tensors.difference(kSeed); !difference.empty()) throw Fault(difference);
}

void CheckpointTrial::find() {
  std::optional<SharedManifest> found = find_manifest(folder_, {}, group_);
  if (!found || found->info().iteration != kIteration) throw Fault("it is not found");
  found_ = std::make_unique<SharedManifest>(std::move(*found));
}

void CheckpointTrial::load_found() {
  TestTensors all = tensors();
  load_tensors(*found_, all.list(), {}, group_);
  expect_saved(all);
}

void CheckpointTrial::read_found() {
  TestTensors all = tensors();
  const CheckpointReader reader(*found_, all.list(), group_);
  for (const LocalTensor& part : all.list()) reader.read(part);
  expect_saved(all);
}

void CheckpointTrial::load() {
  TestTensors all = tensors();
  const auto info = load_checkpoint({.directory = folder_, .tensors = all.list()}, group_);
  if (!info || info->iteration != kIteration) throw Fault("it is not loaded");
  expect_saved(all);
}

}  // namespace teratron
