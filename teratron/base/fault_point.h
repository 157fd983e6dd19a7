// Named fault points: places where a test (or a cautious user) can make a run fail on purpose.
//
//   TERATRON_FAULT="ckpt.before_commit@rank=1,step=3:kill;file.write@times=2:errno=EIO"
//
// point[@condition,...]:action[=value], several separated by ';'. A point may end in '*' (any rest).
// Conditions: rank=N and step=N (as last given to set_fault_context on this thread), hit=N (only the N-th
// matching passage, from 1), times=N (only the first N). Actions: kill (SIGKILL), abort, stop (SIGSTOP),
// throw (a Fault), errno=EIO (a failure that the file layer pretends), delay=MILLISECONDS, bitflip=BIT (of
// the data that the point exposes). The points are always compiled in; while none is armed one costs a
// relaxed load.
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
int pass(std::string_view point, std::span<std::byte> data);
}  // namespace fault_detail

/// Passes a point; does nothing unless armed. Returns 0, or the errno that the caller is to pretend (only the
/// points named file.* do). `data` is what a bitflip may damage.
inline int fault_point(std::string_view point, std::span<std::byte> data = {}) {
  if (!fault_detail::armed.load(std::memory_order_relaxed)) [[likely]]
    return 0;
  return fault_detail::pass(point, data);
}

/// What the conditions rank= and step= compare with, for the calling thread.
void set_fault_context(int64_t rank, int64_t step);

/// Arms the faults of a specification, replacing those armed before; "" disarms. Throws UserError(config).
void arm_faults(std::string_view specification);
/// arm_faults(getenv("TERATRON_FAULT")), if it is set; main() calls it first.
void arm_faults_from_environment();

/// Arms for a scope: tests.
class ScopedFaults {
 public:
  explicit ScopedFaults(std::string_view specification) { arm_faults(specification); }
  ~ScopedFaults() { arm_faults(""); }
  ScopedFaults(const ScopedFaults&) = delete;
  ScopedFaults& operator=(const ScopedFaults&) = delete;
};

/// Runs `body` and returns the names of the points that it passed, in order of first passage, with repeats
/// left out: a crash sweep kills a run at each of them.
std::vector<std::string> record_fault_points(void (*body)(void*), void* argument);

template <typename Body>
std::vector<std::string> record_fault_points(Body&& body) {
  return record_fault_points(
      [](void* argument) { (*static_cast<std::remove_reference_t<Body>*>(argument))(); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace teratron
