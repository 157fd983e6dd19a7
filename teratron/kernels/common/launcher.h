// Launchers: the functions of .cu files. They take raw device pointers, so nvcc never parses ATen's headers.
// Each room declares its own in launchers.h; no_cuda.cpp redefines the macro to make stubs of them.
#pragma once

#include <cstdint>

#include "teratron/base/dtype.h"

struct CUstream_st;

#ifndef TERATRON_LAUNCHER
#define TERATRON_LAUNCHER(result, name, ...) result name(__VA_ARGS__)
#endif
