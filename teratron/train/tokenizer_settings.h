// The tokenizer that the settings name.
#pragma once

#include "teratron/tokenizer/tokenizer.h"
#include "teratron/train/arguments.h"

namespace teratron {

TokenizerOptions tokenizer_options(const Arguments& args);

}  // namespace teratron
