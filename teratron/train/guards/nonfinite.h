// Diagnosis of a step whose loss or gradient is not finite.
#pragma once

#include <filesystem>
#include <string>

#include "teratron/train/engine/engine.h"

namespace teratron {

/// Repeats the step without an update and describes the first part of the model whose numbers are not finite,
/// with its rank and samples, or reports that all were finite this time. Writes the step's token ids to
/// `folder`/nan-iteration-<i>-rank-<r>.txt, one file per data-parallel rank (empty folder: none), one sample
/// per line, as `teratron logits` and `teratron tokenizer decode` read them. Collective; the same text on
/// every rank.
std::string diagnose_nonfinite(TrainEngine& engine, const PendingStep& step, int64_t iteration,
                               const std::filesystem::path& folder);

}  // namespace teratron
