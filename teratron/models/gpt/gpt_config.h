// GPT's configuration from the command-line arguments.
#pragma once

#include "teratron/models/transformer/config.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// The logical vocabulary is the tokenizer's size, or --vocab-size if larger.
GPTConfig gpt_config(const Arguments& args, int64_t tokenizer_size);

}  // namespace teratron
