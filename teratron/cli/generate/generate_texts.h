// `teratron generate` with prompts, or with none (--num-samples): texts on stdout, in a file, and in the
// metrics of a run.
#pragma once

#include "teratron/cli/generate/generate_job.h"

namespace teratron {

/// --prompt, --sample-input-file, --num-samples, or the lines of standard input. Collective.
void generate_texts(const GenerateJob& job);

}  // namespace teratron
