// Fault injection: named points at which a test can make a run fail.
//
//   TERATRON_FAULT="ckpt.before_commit@rank=1,step=3:kill;file.write@times=2:errno=EIO"
//
// point[@condition,...]:action[=value], separated by ';'. A trailing '*' in the point is a wildcard.
// Conditions: rank=N and step=N (as set by set_fault_context() on this thread), hit=N (only the N-th matching
// hit, from 1), times=N (only the first N). Actions: kill (SIGKILL), abort, stop (SIGSTOP), throw (a Fault),
// errno=EIO (the file layer reports this error), delay=MILLISECONDS, bitflip=BIT (of the data passed to the
// point). Fault points are always compiled in; while none is armed, a point costs one relaxed load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace teratron {

namespace fault_detail {
extern std::atomic<bool> armed;
int hit(std::string_view point, std::span<std::byte> data);
}  // namespace fault_detail

/// Does nothing unless armed. Returns 0, or the errno that the caller must report (only points named file.*
/// do). `data` is the target of a bitflip.
inline int fault_point(std::string_view point, std::span<std::byte> data = {}) {
  if (!fault_detail::armed.load(std::memory_order_relaxed)) [[likely]]
    return 0;
  return fault_detail::hit(point, data);
}

/// Sets the rank and step for conditions, for the calling thread.
void set_fault_context(int64_t rank, int64_t step);

/// Replaces the armed faults by those of `specification`; "" disarms. Throws UserError(config).
void arm_faults(std::string_view specification);
/// arm_faults(getenv("TERATRON_FAULT")) if set; called first in main().
void arm_faults_from_environment();

/// Arms faults for a scope.
class ScopedFaults {
 public:
  explicit ScopedFaults(std::string_view specification) { arm_faults(specification); }
  ~ScopedFaults() { arm_faults(""); }
  ScopedFaults(const ScopedFaults&) = delete;
  ScopedFaults& operator=(const ScopedFaults&) = delete;
};

/// Runs `body` and returns the distinct points it hit, in order. A crash sweep kills a run at each of them.
std::vector<std::string> record_fault_points(void (*body)(void*), void* argument);

template <typename Body>
std::vector<std::string> record_fault_points(Body&& body) {
  return record_fault_points(
      [](void* argument) { (*static_cast<std::remove_reference_t<Body>*>(argument))(); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace teratron
