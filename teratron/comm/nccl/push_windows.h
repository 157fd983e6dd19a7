// The memory through which gradients are pushed to the ranks that sum them (copy_engine_reduce_scatter.h), as
// memory plans count it.
#pragma once

#include <cstdint>

namespace teratron {

constexpr int64_t push_windows = 2;  // of a group of ranks; kept once made
constexpr int64_t push_window_bytes = int64_t{64} << 20;
/// Smallest part of a rank that is pushed: below, the barriers cost more than the transfer.
constexpr int64_t min_push_bytes = int64_t{1} << 20;

}  // namespace teratron
