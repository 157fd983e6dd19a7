#include "python/module/door.h"

#include <atomic>
#include <stdexcept>

#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <unistd.h>

namespace teratron::python {

namespace {

std::atomic<pid_t> process{0};  // lint: allow(global-state): of the process by its nature

}  // namespace

void note_process() {
  process = getpid();
}

Entry::Checked::Checked() {
  if (process != getpid()) {
    throw std::runtime_error(
        "this process is a child of fork(), in which the threads that compute do not exist. Start it with "
        "multiprocessing's method 'spawn', or compute in the parent alone");
  }
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    throw std::runtime_error(
        "a dispatch mode of torch is active, which would see the engine's tensors. Leave its context first");
  }
  if (c10::get_default_dtype_as_scalartype() != c10::kFloat) {
    throw std::runtime_error(
        "torch's default dtype is not float32, which the engine's tensors would take. Call "
        "torch.set_default_dtype(torch.float32); --bf16 and --fp16 choose the precision of a training");
  }
}

Entry::Entry() = default;

Door::Door(Log log)
    : autocast_cpu_(at::autocast::is_autocast_enabled(at::kCPU)),
      autocast_cuda_(at::autocast::is_autocast_enabled(at::kCUDA)) {
  if (log == Log::silent) silent_.emplace();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_enabled(at::kCUDA, false);
}

Door::~Door() {
  at::autocast::set_autocast_enabled(at::kCPU, autocast_cpu_);
  at::autocast::set_autocast_enabled(at::kCUDA, autocast_cuda_);
}

}  // namespace teratron::python
