// Offloading of what the first steps (layers, or units that are recomputed together) of a stack save for
// backward. It is copied to pinned host memory beside the computation of the steps after them, and back
// before it is needed. The host waits for nothing; the device waits where a copy is late. Which copies may be
// late, and what is on the device meanwhile: offload_schedule.h.
//
// A storage is copied once, whatever number of tensors saved it. It stays on the device if it is small, or if
// something else holds it: parameters, gradients, inputs of the stack that its caller keeps. Memory is freed
// by dropping references after the current stream waits for the copy, so no storage is ever changed under
// another owner.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "teratron/nn/autograd/saved_tensors.h"
#include "teratron/nn/offload/offload_schedule.h"

namespace teratron {

struct OffloadOptions {
  OffloadSchedule schedule;
  int64_t min_bytes = int64_t{1} << 20;  // of a storage that is copied
};

/// For one stack on one rank. Several forwards may be in flight, as in a pipeline. Graphs may outlive it.
class ActivationOffload {
 public:
  /// One forward of the stack and its backward.
  class Pass {
   public:
    virtual ~Pass() = default;
    /// Around the forward of a step; null where it is not offloaded.
    virtual std::unique_ptr<SavedTensorScope> save_step(int64_t step) = 0;
    /// After the forward of each step, offloaded or not, when its input is no longer held. `output`: of the
    /// step; its gradient begins the step's backward.
    virtual void end_step(int64_t step, const at::Tensor& output) = 0;
  };

  explicit ActivationOffload(const OffloadOptions& options) : options_(options) {}
  /// On the device of all further passes.
  std::shared_ptr<Pass> begin_pass(at::Device device);
  /// Host memory allocated so far.
  int64_t host_bytes() const;

  struct State;

 private:
  OffloadOptions options_;
  std::shared_ptr<State> state_;
};

}  // namespace teratron
