// The tokenizer that the settings name.
#pragma once

#include "teratron/settings/arguments.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

TokenizerOptions tokenizer_options(const Arguments& args);

}  // namespace teratron
