// A point in the current stream, to ask whether the device has reached it.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace teratron {

class StreamMarker {
 public:
  /// After all work queued so far. A CPU has done its work at once.
  void record(at::Device device);
  /// Does not wait.
  bool reached() const { return !event_ || event_->query(); }
  void wait() const {
    if (event_) event_->synchronize();
  }

 private:
  std::optional<c10::Event> event_;
};

}  // namespace teratron
