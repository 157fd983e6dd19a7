// Commands that run the model of a checkpoint, as programs that take settings.
#pragma once

#include <string>

#include "teratron/settings/arguments.h"

namespace teratron {

/// `sets`: of rows of settings/arguments.def, beside those for `name`.
inline Program inference_program(const std::string& name, ProgramNames sets = {"inference"}) {
  sets.insert(sets.begin(), name);
  return {.names = std::move(sets), .models_are_saved = true};
}

/// Prints the notices on the settings, on rank 0 only, and uses --num-threads. Call it before the model is
/// loaded.
void start_inference(const ParsedArguments& parsed);

}  // namespace teratron
