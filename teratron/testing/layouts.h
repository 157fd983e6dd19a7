// Layout tests: runs any layout on thread ranks and compares global tensors.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <random>

#include "teratron/comm/host/thread_world.h"
#include "teratron/models/gpt/gpt_config.h"
#include "teratron/train/engine/engine.h"

namespace teratron {

/// Distribution of a model over ranks.
struct Layout {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t dp = 1;
  int64_t ep = 1;
  int64_t etp = 1;
  int64_t split = 0;         // stages of the first tower (encoder); 0: layers are divided evenly over all
  int64_t chunks = 1;        // virtual stages of a rank
  std::string stages = {};   // text form of pipeline/pipeline_layout.h; empty: even
  int64_t group = 0;         // of the interleaved schedule
  int64_t microbatches = 1;  // of a data-parallel rank
  int64_t bucket_size = 1000;
  bool sequence_parallel = false;
  bool sharded = false;  // distributed optimizer
  bool overlap_param_gather = false;
  bool average_in_collective = false;
  bool overlap_p2p = true;
  bool overlap_tp = true;
  bool late = false;  // collectives run inside wait()

  MeshOptions mesh() const { return {.tp = tp, .pp = pp, .cp = cp, .ep = ep, .etp = etp, .dp = dp}; }
};
std::string to_string(const Layout& layout);
/// All options, on eight ranks.
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
struct TestData {
  int64_t sequence = 8;
  bool documents = false;  // attention stops at document bounds
};

EngineOptions engine_options(const ModelPlan& model, const Layout& layout, at::ScalarType dtype);
EngineOptions engine_options(const GPTConfig& config, const Layout& layout, at::ScalarType dtype);
/// One step on this rank, on random samples with seed `step`: the same for every layout.
PendingStep train_step(TrainEngine& engine, const Layout& layout, const TestData& data, int64_t step,
                       const Optimizer::Hyperparameters& hyper);
/// The micro-batch of the given samples of a step.
MicroBatch test_batch(const TestData& data, int64_t vocabulary, int64_t step, FlatRange samples);

/// A model with its data.
struct TestModel {
  ModelPlan plan;
  /// The micro-batch of the given samples of a step.
  std::function<MicroBatch(int64_t step, FlatRange samples)> batch;
  bool counts_tokens = true;  // its losses are sums over tokens; false: means of micro-batches
  bool smooth = true;         // false: its gradients jump, as at the kink of ReLU
};

/// Assembles global tensors from the ranks' parts. Elements on several ranks must be bitwise equal.
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
  std::map<std::pair<std::string, int64_t>, Local> parts_;  // by name and shard index
};

/// The owned part of every gradient after a step.
std::vector<StateTensor> gradients(TrainEngine& engine);
std::vector<StateTensor> weights(TrainEngine& engine);

/// Loss and every gradient of one step.
struct Gradients {
  StepResult step;
  std::map<std::string, at::Tensor> tensors;
};
Gradients gradients_of(const TestModel& model, const Layout& layout, at::ScalarType dtype);
Gradients gradients_of(const GPTConfig& config, const Layout& layout, const TestData& data,
                       at::ScalarType dtype);

/// Relative Frobenius error of every gradient and relative error of loss and norm, all below `bound`.
void expect_same(const Gradients& actual, const Gradients& expected, double bound);

/// The layout against one rank: errors below 1e-12 in fp64 and 1e-5 in fp32, or, for models that magnify
/// rounding, below 8 times the error of one rank in fp32 (in fp64: times 2^-29). Models that are not smooth
/// are compared in fp64 alone: near a jump, fp32's rounding decides on which side a value is.
void expect_twins(const TestModel& model, const Layout& layout);
void expect_twins(const GPTConfig& config, const Layout& layout, const TestData& data);

/// A model and a layout that fits it, drawn at random; at most `ranks` ranks.
struct RandomCase {
  GPTConfig config;
  Layout layout;
  TestData data;
};
RandomCase random_case(std::mt19937& random, int64_t ranks);
/// Adds context-parallel ranks where `ranks` and the samples' length leave room for them, and a communication
/// for each layer that its heads and window allow.
void add_context_parallel(TransformerConfig& config, Layout& layout, int64_t ranks, std::mt19937& random);
/// None, or the first layers of each stage, with or without the small tensors.
OffloadConfig random_offload(std::mt19937& random);
/// Another layout for the same model.
Layout random_layout(const TransformerConfig& config, std::mt19937& random, int64_t ranks);

/// Random cases within a time budget. All tests of a program share TERATRON_RANDOM_SECONDS (60; 300 in the
/// long tests). TERATRON_RANDOM_SEED repeats a run from the seed of a failed case.
class RandomCases {
 public:
  struct Options {
    double share = 1.0;   // of the budget
    int64_t minimum = 1;  // cases that run in any case
  };
  explicit RandomCases(const Options& options);
  /// Prints the test's name, the first seed and the number of cases.
  ~RandomCases();
  RandomCases(const RandomCases&) = delete;
  RandomCases& operator=(const RandomCases&) = delete;

  /// Seeds the generator of the next case; nullopt when the budget is used up or the test has failed.
  std::optional<std::mt19937> next();
  /// Seed of the current case.
  uint32_t seed() const { return first_seed_ + static_cast<uint32_t>(cases_ - 1); }

 private:
  Options options_;
  uint32_t first_seed_;
  std::chrono::steady_clock::time_point end_;
  int64_t cases_ = 0;
};

}  // namespace teratron
