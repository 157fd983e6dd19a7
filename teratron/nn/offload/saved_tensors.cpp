#include "teratron/nn/offload/saved_tensors.h"

#include <utility>

#include <torch/csrc/autograd/engine.h>

namespace teratron {

namespace {

// Autograd asks for hooks without a context argument.
SavedTensorScope*& innermost() {
  thread_local SavedTensorScope* scope = nullptr;  // lint: allow(global-state): see above
  return scope;
}

class EngineWithHooks : public torch::autograd::Engine {
 public:
  ~EngineWithHooks() override { stop(); }
  std::unique_ptr<SavedTensorScope::Hooks> get_default_saved_variable_hooks() override {
    return SavedTensorScope::make_hooks();
  }
};

torch::autograd::Engine& engine_with_hooks() {
  static EngineWithHooks engine;  // lint: allow(global-state): as torch's, one per process
  return engine;
}

void install_engine() {
  static const bool installed = [] {
    torch::autograd::set_default_engine_stub(engine_with_hooks);
    return true;
  }();
  (void)installed;
}

}  // namespace

SavedTensorScope::SavedTensorScope(Factory factory)
    : factory_(std::move(factory)), outer_(std::exchange(innermost(), this)) {
  install_engine();
}

SavedTensorScope::~SavedTensorScope() {
  innermost() = outer_;
}

std::unique_ptr<SavedTensorScope::Hooks> SavedTensorScope::make_hooks() {
  return innermost() ? innermost()->factory_() : nullptr;
}

}  // namespace teratron
