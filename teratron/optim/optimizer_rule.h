// What an optimizer does with parameters: Adam, SGD, or a rule that a program brings.
//
// A rule names the state that it keeps, its unit, and its step. The rest follows from these: buckets
// (optim/bucket_layout.h), the distributed optimizer, checkpoints and the planner's memory. Built-in rules
// are in optim/rules and listed in settings/optimizer_rules.cpp. Programs pass their rules in
// EngineOptions::rules.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/kernels/optimizer/optimizer_step.h"
#include "teratron/optim/rule_state.h"

namespace teratron {

struct Parameter;

class OptimizerRule {
 public:
  enum class Unit : uint8_t {
    element,  // any part of a flat buffer
    matrix,   // a whole parameter, as this rank holds it: derive from MatrixRule (optim/matrix_rule.h)
  };
  /// What one step updates: flat tensors of n elements.
  struct Slice {
    MasterWeights weights;
    at::Tensor grad;                       // to be multiplied by StepScalars::grad_scale
    std::vector<at::Tensor> states;        // in the order of states()
    at::Tensor groups;                     // uint8 [ceil(n / 64)]: row of StepScalars, by block
    const Parameter* parameter = nullptr;  // Unit::matrix: n are its elements
    Group parts = {};                      // Unit::matrix: ranks_of_parts()
  };

  virtual ~OptimizerRule() = default;
  virtual std::vector<RuleState> states() const = 0;
  virtual Unit unit() const { return Unit::element; }
  /// Does not wait for the device. Changes nothing if StepScalars::found_inf is nonzero.
  virtual void step(const Slice& slice, const StepScalars& scalars) const = 0;
};

/// State in bytes per element of a parameter, without master weights.
int64_t state_bytes(const OptimizerRule& rule);

struct RuleChoice {
  std::shared_ptr<const OptimizerRule> rule;
  std::function<bool(const Parameter&)> takes = {};  // null: all
};
/// Each parameter is stepped by the first rule that takes it; one must.
using OptimizerRules = std::vector<RuleChoice>;
/// Index of that rule.
size_t rule_of(const OptimizerRules& rules, const Parameter& parameter);

}  // namespace teratron
