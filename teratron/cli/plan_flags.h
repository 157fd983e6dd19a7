// The value of --gpu-memory of `plan` and `config`.
#pragma once

#include <string>

#include "teratron/plan/flops.h"

namespace teratron {

struct GpuMemory {
  std::string name;
  double gib = 0.0;
  const Gpu* gpu = nullptr;  // null: given by its memory alone
};

/// GiB with or without a unit (80, 80GB, 80 GiB, 81920MiB: GB are GiB, as makers of GPUs count), or the name
/// of a known GPU. UserError(config) for anything else.
GpuMemory parse_gpu_memory(const std::string& text);

}  // namespace teratron
