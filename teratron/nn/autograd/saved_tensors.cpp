#include "teratron/nn/autograd/saved_tensors.h"

#include <utility>

#include <torch/csrc/autograd/engine.h>

namespace teratron {

namespace {

// Autograd asks for hooks without a context argument.
SavedTensorScope*& innermost() {
  thread_local SavedTensorScope* scope = nullptr;  // lint: allow(global-state): see above
  return scope;
}

using torch::autograd::Engine, torch::autograd::edge_list, torch::autograd::variable_list;

// Backward runs on torch's engine: its threads for devices are started once in a process, for the engine that
// runs the first backward.
class EngineWithHooks : public Engine {
 public:
  ~EngineWithHooks() override { stop(); }
  // lint: allow(parameters): torch's, lint: allow(bool-pair): likewise
  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph,
                        bool create_graph, bool accumulate_grad, const edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, std::shared_ptr<torch::autograd::Node> root,
      torch::autograd::InputBuffer&& inputs) override {
    return get_base_engine().execute_with_graph_task(task, std::move(root), std::move(inputs));
  }
  std::unique_ptr<SavedTensorScope::Hooks> get_default_saved_variable_hooks() override {
    return SavedTensorScope::make_hooks();
  }
};

Engine& engine_with_hooks() {
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
