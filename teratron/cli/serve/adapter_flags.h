// Adapters that a server has beside its model: --lora NAME=DIR, several times.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "teratron/generate/loaded_model.h"

namespace teratron {

struct AdapterFlags {
  std::vector<NamedAdapter> adapters = {};
  std::vector<std::string> others = {};  // arguments without these flags; among them a --lora DIR
};

/// UserError(config) for a name that is empty or given twice.
AdapterFlags take_adapter_flags(std::span<const std::string> args);

}  // namespace teratron
