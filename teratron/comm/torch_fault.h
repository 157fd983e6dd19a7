// Converts exceptions, libtorch's among them, to Faults.
#pragma once

#include <exception>

#include "teratron/base/error.h"

namespace teratron {

/// Message and exit code of any exception: its own if it is a UserError or Fault; ExitCode::out_of_memory
/// for host or device memory; else retryable. libtorch's messages come without their stack trace.
Fault to_fault(const std::exception& error);

}  // namespace teratron
