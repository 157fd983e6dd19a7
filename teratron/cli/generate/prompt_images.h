// The images that requests of `teratron generate` name.
#pragma once

#include "teratron/cli/generate/generate_job.h"

namespace teratron {

/// Lets the job's requests name files, if its model reads images.
void read_prompt_images(GenerateJob& job);

}  // namespace teratron
