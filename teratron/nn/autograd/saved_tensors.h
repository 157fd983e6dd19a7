// Hooks on what autograd saves of a forward: saved variables of every function, torch's and ours, and the
// tensors of save_releasable() (autograd.h).
//
// libtorch takes default hooks from its autograd engine, which knows only Python's. So the first scope makes
// an engine with this one difference the default of the process.
#pragma once

#include <functional>
#include <memory>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace teratron {

/// While it lives, tensors that this thread saves for backward are packed into hooks of the factory, and
/// unpacked in backward. Scopes nest; the innermost counts.
class SavedTensorScope {
 public:
  using Hooks = torch::autograd::SavedVariableHooks;
  using Factory = std::function<std::unique_ptr<Hooks>()>;

  explicit SavedTensorScope(Factory factory);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  /// For one tensor; null outside of scopes.
  static std::unique_ptr<Hooks> make_hooks();

 private:
  Factory factory_;
  SavedTensorScope* outer_;
};

}  // namespace teratron
