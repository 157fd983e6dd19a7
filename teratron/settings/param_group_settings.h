// Parameter groups that the settings choose: --no-wd-decay-cond, --no-weight-decay-cond-type, --head-lr-mult,
// --scale-lr-cond and --lr-mult, in this order; later ones win.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "teratron/optim/param_group_rules.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// A value of --lr-mult.
struct LrMult {
  std::string pattern;  // "": those of --scale-lr-cond
  double factor = 1.0;
};
/// "PATTERN=F" or "F"; nullopt for an empty pattern, and unless F is a number of at least 0.
std::optional<LrMult> lr_mult_from(const std::string& text);

/// For valid settings.
std::vector<ParamGroupRule> param_group_rules(const Arguments& args,
                                              const std::vector<std::string>& head_patterns);

}  // namespace teratron
