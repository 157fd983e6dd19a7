// Data types of a model from the settings of a run.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "teratron/nn/fp8_scaling.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// fp32, or what --bf16 or --fp16 select.
at::ScalarType model_dtype(const Arguments& args);
/// The FP8 recipe of --fp8-format and its companions; nothing without --fp8-format.
std::optional<Fp8Options> fp8_options(const Arguments& args);

}  // namespace teratron
