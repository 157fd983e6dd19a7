#include "teratron/optim/rules/adam.h"

#include "teratron/optim/rules/adam_states.h"

namespace teratron {

namespace {

class Adam : public OptimizerRule {
 public:
  explicit Adam(const AdamOptions& options) : options_(options) {}

  std::vector<RuleState> states() const override { return {std::begin(adam_states), std::end(adam_states)}; }
  void step(const Slice& slice, const StepScalars& scalars) const override {
    adam_step_({.weights = slice.weights,
                .grad = slice.grad,
                .exp_avg = slice.states[0],
                .exp_avg_sq = slice.states[1],
                .groups = slice.groups},
               scalars, options_);
  }

 private:
  AdamOptions options_;
};

}  // namespace

std::shared_ptr<const OptimizerRule> adam_rule(const AdamOptions& options) {
  return std::make_shared<Adam>(options);
}

}  // namespace teratron
