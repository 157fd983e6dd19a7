// --model-preset and --hf-config as settings of the model.
#pragma once

#include "teratron/base/config/config.h"

namespace teratron {

/// The settings of the last model_preset or hf_config in `given`, which overrides them: sizes, positions,
/// norms, activation, biases, dropout, the sequence length; not the vocabulary of a preset, which is the
/// tokenizer's; that of a file is the least number of embedding rows.
/// Problems (an unknown preset, both given, an unreadable config.json) are added to the result.
ParseResult architecture_settings(std::string_view program, const Schema& schema, const ParseResult& given);

}  // namespace teratron
