// Copies between device and host memory beside the computation.
#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace teratron {

/// The end of some copies. On a CPU they have ended when they are launched.
class TransferMark {
 public:
  TransferMark() = default;
  explicit TransferMark(c10::Event event) : event_(std::move(event)) {}
  /// Work launched from now on on the current stream waits; the host does not.
  void let_current_wait() const;

 private:
  std::optional<c10::Event> event_;
};

/// A stream of the device; on a CPU copies are done when a call returns.
class TransferStream {
 public:
  explicit TransferStream(at::Device device);
  /// Copies launched from now on wait for the work launched so far on the current stream.
  void follow_current();
  /// Launches a copy between contiguous tensors, one of them on the device and one in pinned host memory.
  void copy(const at::Tensor& to, const at::Tensor& from);
  /// A mark after all copies so far.
  std::shared_ptr<const TransferMark> mark();

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace teratron
