// What a rank of a layout holds in memory, told from the settings before anything is built.
#pragma once

#include "teratron/base/error.h"
#include "teratron/models/transformer/config.h"
#include "teratron/settings/arguments.h"

namespace teratron {

inline constexpr double gib = 1024.0 * 1024.0 * 1024.0;

/// Bytes, but for the number of parameters. The activations are an estimate.
struct RankMemory {
  int64_t parameters = 0;
  double weights = 0.0;
  double gradients = 0.0;
  double optimizer = 0.0;  // moments and master weights
  double activations = 0.0;

  double state() const { return weights + gradients + optimizer; }
  double sum() const { return state() + activations; }
};

/// The model of finished settings; reads the tokenizer only where no flag gives the vocabulary's size.
GPTConfig planned_model(const Arguments& args);
/// Of a rank of this pipeline stage.
RankMemory rank_memory(const Arguments& args, const GPTConfig& model, int64_t stage);

/// Up to three flags that make a rank's memory smaller, the most useful ones first; each with what it does.
std::vector<std::string> memory_advice(const Arguments& args, const RankMemory& memory);
/// `cause` (exit code out_of_memory) with a table of what a rank of this stage needs and what to change.
Fault explain_out_of_memory(const Fault& cause, const Arguments& args, int64_t stage);

}  // namespace teratron
