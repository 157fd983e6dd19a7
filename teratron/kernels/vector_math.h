// ATen's vectors for our loops on the CPU, as wide as the processors that this build is for have them. Their exp and erf
// are SLEEF's: to one unit in the last place.
#pragma once

#ifdef __AVX2__  // which ATen's headers want to be told in this way
#define CPU_CAPABILITY AVX2
#define CPU_CAPABILITY_AVX2
#endif
#include <ATen/cpu/vec/functional.h>

namespace teratron {

template <typename A>
using Vector = at::vec::Vectorized<A>;

}  // namespace teratron
