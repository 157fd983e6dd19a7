// ATen's SIMD vectors for CPU loops: 256 bits with AVX2, whose exp is SLEEF's, accurate to 1 ulp; otherwise
// ATen's default for the processor.
#pragma once

#include <c10/util/Half.h>  // before the macros, which would affect it

#ifdef __AVX2__  // as ATen's headers expect
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
