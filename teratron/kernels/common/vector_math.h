// ATen's vectors for our loops on the CPU: of 256 bits where the build has AVX2, whose exp is SLEEF's, to one unit in the
// last place; elsewhere whatever ATen has for the processor.
#pragma once

#include <c10/util/Half.h>  // before the macros, which would change it

#ifdef __AVX2__  // which ATen's headers want to be told in this way
#define CPU_CAPABILITY AVX2
#define CPU_CAPABILITY_AVX2
#endif
#include <ATen/cpu/vec/functional.h>
#undef CPU_CAPABILITY
#undef CPU_CAPABILITY_AVX2

namespace teratron {

template <typename A>
using Vector = at::vec::Vectorized<A>;

}  // namespace teratron
