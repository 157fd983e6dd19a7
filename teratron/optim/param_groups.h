// Chosen parameter groups (optim/param_group_rules.h) applied to the parameters of a rank.
#pragma once

#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/parameter.h"
#include "teratron/optim/param_group_rules.h"

namespace teratron {

class ParamGroups {
 public:
  /// Before the optimizer is made. The parameters must outlive it. `program` may be null. Collective.
  /// UserError(config) on all ranks for a rule that matches no trained parameter of the model, and for more
  /// than 256 different groups.
  ParamGroups(ParameterSet& parameters, const Mesh& mesh, ParamGroupFunction program,
              std::vector<ParamGroupRule> rules);

  /// Other rules, as those of a checkpoint. Collective; Optimizer::update_groups() follows.
  void set_rules(std::vector<ParamGroupRule> rules);
  const ParamGroupChoices& choices() const { return choices_; }

 private:
  struct Trained {
    Parameter* parameter;
    ParamGroup before;  // the layer's, changed by the program
  };
  void ask_program(const ParamGroupFunction& program);
  void check_matches() const;
  void check_count() const;

  Mesh mesh_;
  std::vector<Trained> trained_;
  ParamGroupChoices choices_;
};

}  // namespace teratron
