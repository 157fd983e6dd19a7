// When activations of a stack of layers leave the device and come back.
#pragma once

#include <algorithm>
#include <cstdint>

namespace teratron {

/// Offload plan of a layer stack: saved activations of the first `offloaded` of `steps` steps (layers, or
/// units that are recomputed together) go to the host. Copies may lag behind computation; at most max(2,
/// steps - offloaded) steps' activations are on the device at once.
struct OffloadSchedule {
  int64_t steps = 0;
  int64_t offloaded = 0;  // the first ones

  /// Number of batches of copies that may be unfinished when `step` has run forward; the next step waits for
  /// older ones.
  int64_t most_in_flight(int64_t step) const {
    return step < offloaded ? copies_ahead() : std::max<int64_t>(0, steps - 2 - step);
  }
  /// When the backward of `step` begins, offloaded steps from this one on are on the device or on their way.
  int64_t first_on_device(int64_t step) const {
    const int64_t ahead = step > offloaded ? steps - 1 - step : copies_ahead();
    return std::max<int64_t>(0, std::min(step, offloaded) - ahead);
  }

 private:
  int64_t copies_ahead() const { return std::max<int64_t>(1, steps - offloaded - 1); }
};

}  // namespace teratron
