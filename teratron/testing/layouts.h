// What the tests of layouts share: a run of any layout on thread ranks, told by global tensors.
#pragma once

#include <map>
#include <mutex>
#include <random>

#include "teratron/comm/host/thread_world.h"
#include "teratron/train/engine.h"

namespace teratron {

/// How a model is laid over ranks.
struct Layout {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t dp = 1;
  int64_t chunks = 1;        // virtual stages of a rank
  std::string stages = {};   // text form of pipeline/layout.h; empty: even
  int64_t group = 0;         // of the interleaved schedule
  int64_t microbatches = 1;  // of a data-parallel rank
  int64_t bucket_size = 1000;
  bool sequence_parallel = false;
  bool sharded = false;  // distributed optimizer
  bool overlap_param_gather = false;
  bool average_in_collective = false;
  bool overlap_p2p = true;
  bool overlap_tp = true;
  bool late = false;  // collectives happen when they are waited for

  MeshOptions mesh() const { return {.tp = tp, .pp = pp, .dp = dp}; }
};
std::string to_string(const Layout& layout);
/// Everything at once, on eight ranks.
inline const Layout every_axis{.tp = 2,
                               .pp = 2,
                               .dp = 2,
                               .chunks = 2,
                               .microbatches = 2,
                               .sequence_parallel = true,
                               .sharded = true,
                               .overlap_param_gather = true};

/// Runs `body` on thread ranks.
void run_layout(const Layout& layout, const std::function<void(const Mesh&)>& body);

/// Samples of every step, over all ranks.
inline constexpr int64_t test_samples = 8;
/// Longest micro-batch count that every layout of `dp` ranks can have is test_samples / dp.
struct TestData {
  int64_t sequence = 8;
  bool documents = false;  // attention stops at document bounds
};

EngineOptions engine_options(const GPTConfig& config, const Layout& layout, at::ScalarType dtype);
/// One step on this rank, on the samples that a seed of `step` gives: the same for every layout.
PendingStep train_step(TrainEngine& engine, const Layout& layout, const TestData& data, int64_t step,
                       const Optimizer::Hyperparameters& hyper);
/// The micro-batch of samples [first, first + count) of a step.
MicroBatch test_batch(const TestData& data, int64_t vocabulary, int64_t step, FlatRange samples);

/// Global tensors out of what ranks hold. Where several ranks hold the same element they must agree bit by
/// bit.
class GlobalTensors {
 public:
  /// Thread-safe.
  void add(const StateTensor& part);
  std::map<std::string, at::Tensor> tensors() const;

 private:
  struct Local {
    Shard shard;
    at::Tensor values;   // flat
    at::Tensor present;  // bool
  };
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int64_t>, Local> parts_;  // by name and part of the cut
};

/// The owned part of every gradient, as it is after a step.
std::vector<StateTensor> gradients(TrainEngine& engine);
std::vector<StateTensor> weights(TrainEngine& engine);

/// Loss and every gradient of one step.
struct Gradients {
  StepResult numbers;
  std::map<std::string, at::Tensor> tensors;
};
Gradients gradients_of(const GPTConfig& config, const Layout& layout, const TestData& data,
                       at::ScalarType dtype);

/// Relative Frobenius error of every gradient and relative error of loss and norm, all below `bound`.
void expect_same(const Gradients& actual, const Gradients& expected, double bound);

/// The layout against one rank: in fp64 below 1e-12, in fp32 below 1e-5. A model that magnifies rounding may
/// have a few times the error that one rank's own rounding makes in fp32 (in fp64: that times 2^-29).
void expect_twins(const GPTConfig& config, const Layout& layout, const TestData& data);

/// A model and a layout that fits it, drawn at random; at most `ranks` ranks.
struct RandomCase {
  GPTConfig config;
  Layout layout;
  TestData data;
};
RandomCase random_case(std::mt19937& random, int64_t ranks);
/// Another layout for the same model.
Layout random_layout(const GPTConfig& config, std::mt19937& random, int64_t ranks);

}  // namespace teratron
