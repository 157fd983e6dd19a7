#include "teratron/kernels/common/launch_fault.h"

#include "teratron/base/error.h"

namespace teratron::cuda {

void throw_launch_fault(const char* kernel, const char* error) {
  throw Fault(fmt::format("{}: {}", kernel, error));
}

}  // namespace teratron::cuda
