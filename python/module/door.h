// What every call into the engine does first: it checks the process, and sets what a caller may have changed
// in torch as the engine needs it.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <nanobind/nanobind.h>

#include "teratron/base/background_log.h"

namespace teratron::python {

/// Releases the GIL during its lifetime. RuntimeError in a child of fork(), inside a dispatch mode of torch,
/// and with another default dtype than float32: what the engine computes would not be what its settings say.
class Entry {
 public:
  Entry();

 private:
  struct Checked {
    Checked();
  };
  Checked checked_;
  nanobind::gil_scoped_release released_;
};

/// An Entry during which gradients are recorded and autocast is off, in whatever context the caller is.
class Door {
 public:
  /// What the engine prints of its work: only a whole training's log is for the user.
  enum class Log : uint8_t { silent, printed };
  explicit Door(Log log = Log::silent);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

 private:
  Entry entry_;
  c10::InferenceMode inference_{false};
  at::AutoGradMode gradients_{true};
  bool autocast_cpu_, autocast_cuda_;
  std::optional<SilentPrint> silent_;
};

/// Remembers the process: its children cannot compute.
void note_process();

}  // namespace teratron::python
