// When activations of a stack of layers leave the device and come back.
#pragma once

#include <algorithm>
#include <cstdint>

namespace teratron {

/// Of one forward through a stack whose first steps (layers, or units that are recomputed together) are
/// offloaded. Copies may lag behind computation as long as they need no more memory than the steps that stay
/// on the device will: at most max(2, steps - offloaded) steps are on the device while one is computed.
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
