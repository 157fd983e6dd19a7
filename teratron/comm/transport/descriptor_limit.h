// File descriptors: as many as the system permits, and what to do when they run out.
#pragma once

#include <cstdint>
#include <string>

#include "teratron/base/error.h"

namespace teratron {

/// Raises this process's soft limit to the hard one, and returns it.
int64_t raise_descriptor_limit();

/// Throws a Fault that names the limit and how to raise it if `error` (errno) is EMFILE or ENFILE. `what`:
/// what needed a descriptor, e.g. "a connection to rank 3".
void check_descriptors(int error, const std::string& what);

}  // namespace teratron
