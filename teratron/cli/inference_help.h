// --help of the commands that run a model without training it.
#pragma once

#include <functional>
#include <string>

#include "teratron/settings/arguments.h"

namespace teratron {

/// The usage line, then the flags of model, tokenizer and layout that these commands share, and those that
/// `own` chooses.
std::string inference_help(const std::string& usage, const std::function<bool(const Field&)>& own);

}  // namespace teratron
