// Data types of a model from the command-line arguments.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "teratron/nn/fp8_scaling.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// fp32, or as selected by --bf16 or --fp16.
at::ScalarType model_dtype(const Arguments& args);
/// The FP8 recipe of --fp8-format and related flags; nullopt without --fp8-format.
std::optional<Fp8Options> fp8_options(const Arguments& args);

}  // namespace teratron
