// torch.randperm(n, generator=torch.Generator().manual_seed(seed)) on the CPU, number for number: the order
// of an epoch in Megatron-LM's cyclic sampler.
#pragma once

#include <cstdint>
#include <vector>

namespace teratron {

/// A permutation of 0 ... n-1. As in PyTorch, only the low 32 bits of the seed count.
std::vector<int64_t> torch_randperm(int64_t n, uint64_t seed);

}  // namespace teratron
