// Parameter groups that a run or a program chooses: factors of the learning rate and of the weight decay, in
// place of those that layers give their parameters (nn/param_group.h).
//
// Parameters are chosen by their names in checkpoints, "decoder.layers.3.mlp.linear_fc1.weight", so a choice
// does not depend on the layout.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "teratron/optim/lr_schedule.h"

namespace teratron {

/// Factors; unset: as without the choice.
struct ParamGroupChange {
  std::optional<double> weight_decay_mult = {};
  std::optional<double> lr_mult = {};

  bool operator==(const ParamGroupChange&) const = default;
};

/// What a program changes for a parameter, by its name and the shape of the whole tensor. Called on every
/// rank for the parameters that it holds; the answer must follow from the arguments alone. At most 256
/// different groups.
using ParamGroupFunction =
    std::function<ParamGroupChange(const std::string& name, const std::vector<int64_t>& shape)>;

/// A change for the parameters whose name matches a pattern: * stands for any text, ? for any character.
struct ParamGroupRule {
  std::vector<std::string> patterns;
  ParamGroupChange change;
  std::string where = {};  // the setting, for messages
  bool must_match = true;  // some trained parameter; else it is an error
};

bool matches(const ParamGroupRule& rule, std::string_view name);

/// The choices of a run, as its checkpoints keep them.
struct ParamGroupChoices {
  std::vector<ParamGroupRule> rules = {};  // later ones win, and all over the program's function
  std::string program = {};                // a hash of what the program's function changes; "": nothing

  bool empty() const { return rules.empty() && program.empty(); }
  nlohmann::json state() const;
  /// Goes on with a checkpoint's, null if it has none, according to `rule`. With must_match, UserError
  /// (checkpoint) for a difference. With use_checkpoint the rules become the checkpoint's; a program that
  /// changes other parameters is an error then, too.
  void load(const nlohmann::json& state, ScheduleLoadRule rule);
};

}  // namespace teratron
