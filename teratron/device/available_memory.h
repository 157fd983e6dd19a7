// Memory of the host.
#pragma once

#include <cstdint>

namespace teratron {

/// Bytes of the machine, or of the container that the process runs in. Page cache counts as available.
int64_t available_host_memory();

}  // namespace teratron
