// The model's settings that --model-preset and --hf-config stand for.
#pragma once

#include "teratron/base/config/config.h"

namespace teratron {

/// What the last model_preset and hf_config among `given` say, as settings that everything in `given` wins over: sizes,
/// positions, norms, activation, biases, dropout; the longest sequence; not the vocabulary, which is the tokenizer's.
/// Problems (an unknown preset, both at once, a config.json that cannot be read) are added to the result.
Settings architecture_settings(const Schema& schema, const Settings& given);

}  // namespace teratron
