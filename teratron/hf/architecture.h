// --model-preset, --hf-config and --hf as settings of the model.
#pragma once

#include "teratron/base/config/config.h"

namespace teratron {

/// Whether --model-preset knows the name.
bool is_model_preset(std::string_view name);

/// The settings of the model_preset, hf_config or hf in `given`: sizes, positions, norms, activation, biases,
/// dropout, the sequence length. A preset has no vocabulary (the tokenizer's counts); that of a file is the
/// least number of embedding rows. `given` overrides them, but with hf, whose weights are used, it must not
/// make another model. Without a tokenizer in `given`, that of the folder of hf is added.
/// Problems (an unknown preset, two of them given, an unreadable config.json, settings that contradict hf)
/// are added to the result.
ParseResult architecture_settings(std::string_view program, const Schema& schema, const ParseResult& given);

}  // namespace teratron
