// Megatron-LM's gated delta nets store the weights of their output norms centered around 0 where other norms'
// are (--apply-layernorm-1p), ours around 1.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "teratron/megatron/tensor_source.h"

namespace teratron {

/// Whether the weight is such a one, by its name and the settings of its model.
bool is_centered_there(std::string_view name, const nlohmann::json& settings);

/// Adds `term` to an array of a convertible float.
void add_to_floats(char* values, int64_t count, Dtype dtype, float term);

/// `source` plus a number.
TensorSourcePtr plus(TensorSourcePtr source, float term);

}  // namespace teratron
