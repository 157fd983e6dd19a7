// Memory of a rank and time of a step, computed from the settings before anything is built.
#pragma once

#include "teratron/base/error.h"
#include "teratron/models/family.h"
#include "teratron/optim/optimizer_rule.h"
#include "teratron/settings/arguments.h"

namespace teratron {

inline constexpr double gib = 1024.0 * 1024.0 * 1024.0;
/// Unused parts of the allocator's blocks, relative to its peak (docs/notes/memory.md).
inline constexpr double allocator_slack = 0.04;
inline constexpr double cuda_context = gib;  // with its kernels, in bytes

/// In bytes, except the number of parameters.
struct RankMemory {
  int64_t parameters = 0;
  double weights = 0.0;
  double gradients = 0.0;
  double optimizer = 0.0;    // moments and master weights
  double activations = 0.0;  // saved for backward by the micro-batches in flight
  double host = 0.0;         // activations in host memory instead, pinned
  double temporary = 0.0;  // most that forward and backward need meanwhile, and windows that others push into

  double state() const { return weights + gradients + optimizer; }
  /// Peak of PyTorch's allocator, as `teratron bench` reports it.
  double peak() const { return state() + activations + temporary; }
  /// What the rank takes of its GPU.
  double on_gpu() const { return (1.0 + allocator_slack) * peak() + cuda_context; }
};

/// Parameters of the whole model, without padding of the vocabulary and without adapters.
int64_t total_parameters(const ModelPlan& model);
/// The vocabulary size of validated settings (Family::plan); reads the tokenizer only if no flag sets it.
int64_t planned_vocabulary(const Arguments& args);
/// For a rank in this pipeline stage. Without operators in the model activations are unknown, 0.
RankMemory rank_memory(const Arguments& args, const ModelPlan& model, int64_t stage);
/// With the rules of a program (EngineOptions::rules) instead of the choice of --optimizer.
RankMemory rank_memory(const Arguments& args, const ModelPlan& model, int64_t stage,
                       const OptimizerRules& rules);
/// For the stage that needs most.
RankMemory largest_rank_memory(const Arguments& args, const ModelPlan& model);

struct Gpu;
/// A lower bound of a step's seconds (roofline_seconds()): of the slowest stage, with its optimizer.
double least_step_seconds(const Arguments& args, const ModelPlan& model, const Gpu& gpu);

/// Up to three flags that reduce the peak of the largest stage, the most effective first, each with the peak
/// that follows.
std::vector<std::string> memory_advice(const Family& family, const Arguments& args);
/// Likewise, but those with which RankMemory::on_gpu() is at most `bytes`: single changes or, where none
/// is enough, several together. Empty: none of them is enough.
std::vector<std::string> memory_remedies(const Family& family, const Arguments& args, double bytes);
/// `cause` (exit code out_of_memory) with the memory that a rank in this stage needs and what to change.
Fault explain_out_of_memory(const Fault& cause, const Family& family, const Arguments& args, int64_t stage);

}  // namespace teratron
