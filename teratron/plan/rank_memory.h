// Memory of a rank, estimated from the settings before anything is built.
#pragma once

#include "teratron/base/error.h"
#include "teratron/models/gpt/gpt_config.h"
#include "teratron/settings/arguments.h"

namespace teratron {

inline constexpr double gib = 1024.0 * 1024.0 * 1024.0;

/// In bytes, except the number of parameters. The activations are an estimate.
struct RankMemory {
  int64_t parameters = 0;
  double weights = 0.0;
  double gradients = 0.0;
  double optimizer = 0.0;  // moments and master weights
  double activations = 0.0;

  double state() const { return weights + gradients + optimizer; }
  double sum() const { return state() + activations; }
};

/// The model of validated settings; reads the tokenizer only if no flag sets the vocabulary size.
GPTConfig model_from_args(const Arguments& args);
/// Of a rank in this pipeline stage.
RankMemory rank_memory(const Arguments& args, const GPTConfig& model, int64_t stage);

/// Up to three flags that reduce the memory of a rank, the most useful first, each with its effect.
std::vector<std::string> memory_advice(const Arguments& args, const RankMemory& memory);
/// `cause` (exit code out_of_memory) with the memory that a rank in this stage needs and what to change.
Fault explain_out_of_memory(const Fault& cause, const Arguments& args, int64_t stage);

}  // namespace teratron
