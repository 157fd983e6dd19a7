// What libtorch throws, in terms of base/error.h.
#pragma once

#include <c10/util/Exception.h>

#include "teratron/base/error.h"

namespace teratron {

/// Out of host or device memory, or something retryable, without libtorch's stack trace: that is for us, not users.
Fault to_fault(const c10::Error& error);

}  // namespace teratron
