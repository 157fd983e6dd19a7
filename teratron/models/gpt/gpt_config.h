// GPT's configuration from the settings of a run.
#pragma once

#include "teratron/models/transformer/config.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// The logical vocabulary is the tokenizer's, or --vocab-size if that is larger.
GPTConfig gpt_config(const Arguments& args, int64_t tokenizer_size);

}  // namespace teratron
