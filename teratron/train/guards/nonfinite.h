// What is told, and kept, about a step whose loss or gradient is not finite.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "teratron/train/engine.h"

namespace teratron {

/// A step that went wrong, and what it computed with.
struct BadStep {
  int64_t iteration = 0;
  Trainer::StepPlan plan;
  std::vector<MicroBatch> batches;  // this rank's
};

/// Computes the step once more, without an update, and says which part of the model gave the first numbers that are not
/// finite, on which rank and for which samples, or that all were finite this time. Keeps the token ids in `folder` (empty:
/// nowhere), a sample a line as `teratron logits` and `teratron tokenizer decode` read them: one file per data-parallel
/// rank, nan-iteration-<i>-rank-<r>.txt. Collective; the same sentences on every rank.
std::string examine(Trainer& trainer, const BadStep& step, const std::filesystem::path& folder);

}  // namespace teratron
