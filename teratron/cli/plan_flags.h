// Values of flags that `plan` and `config` share.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/plan/flops.h"

namespace teratron {

struct GpuMemory {
  std::string name;
  double gib = 0.0;
  const Gpu* gpu = nullptr;  // null: given by its memory alone
};

/// GiB, or the name of a known GPU. UserError(config) for anything else.
GpuMemory parse_gpu_memory(const std::string& text);

/// UserError(config) unless the text is a positive whole number; `flag` and `what` ("number of ranks") name
/// it.
int64_t parse_count(const std::string& text, const std::string& flag, const std::string& what);

}  // namespace teratron
