// `teratron generate` with prompts, or with none (--num-samples): texts on stdout, in a file, and in the
// metrics of a run.
#pragma once

#include <functional>

#include "teratron/cli/generate/generate_job.h"
#include "teratron/telemetry/metrics.h"

namespace teratron {

/// --prompt, --sample-input-file, --num-samples, or the lines of standard input. Collective.
void generate_texts(const GenerateJob& job);

/// Called on rank 0 with the answers in the order of the prompts. `line`: that of a file of them.
using OnText = std::function<void(const SampleText& sample, const std::string& line)>;
/// These prompts, whose answers go to `on_text` alone. Collective.
void generate_texts(const GenerateJob& job, const OnText& on_text);

}  // namespace teratron
