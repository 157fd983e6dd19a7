// The version of the library, for programs that compile against several (docs/versions.md). CMake and the
// package take it from here.
#pragma once

#define TERATRON_VERSION_MAJOR 0
#define TERATRON_VERSION_MINOR 1
#define TERATRON_VERSION_PATCH 0

/// Whether the library is of this version or a later one: #if TERATRON_VERSION_AT_LEAST(0, 1, 0).
#define TERATRON_VERSION_AT_LEAST(major, minor, patch)                                          \
  (TERATRON_VERSION_MAJOR * 1000000 + TERATRON_VERSION_MINOR * 1000 + TERATRON_VERSION_PATCH >= \
   (major) * 1000000 + (minor) * 1000 + (patch))
