#include "teratron/optim/rules/sgd.h"

namespace teratron {

namespace {

class Sgd : public OptimizerRule {
 public:
  explicit Sgd(double momentum) : momentum_(momentum) {}

  std::vector<RuleState> states() const override {
    if (momentum_ == 0.0) return {};
    return {{"momentum_buffer"}};
  }
  void step(const Slice& slice, const StepScalars& scalars) const override {
    sgd_step_({.weights = slice.weights,
               .grad = slice.grad,
               .momentum_buffer = slice.states.empty() ? at::Tensor() : slice.states[0],
               .groups = slice.groups},
              scalars, momentum_);
  }

 private:
  double momentum_;
};

}  // namespace

std::shared_ptr<const OptimizerRule> sgd_rule(double momentum) {
  return std::make_shared<Sgd>(momentum);
}

}  // namespace teratron
