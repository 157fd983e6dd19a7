#include "teratron/settings/optimizer_rules.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/optim/rules/adam.h"
#include "teratron/optim/rules/sgd.h"

namespace teratron {

namespace {

struct NamedRules {
  std::string_view name;
  OptimizerRules (*make)(const Arguments&);
};

// The choices of --optimizer in arguments.def.
constexpr NamedRules built_in[] = {
    {"adam",
     [](const Arguments& a) -> OptimizerRules {
       return {{adam_rule({.beta1 = a.adam_beta1, .beta2 = a.adam_beta2, .eps = a.adam_eps})}};
     }},
    {"sgd", [](const Arguments& a) -> OptimizerRules { return {{sgd_rule(a.sgd_momentum)}}; }},
};

}  // namespace

OptimizerRules optimizer_rules(const Arguments& args) {
  const auto* const found = std::ranges::find(built_in, args.optimizer, &NamedRules::name);
  TERATRON_ASSERT(found != std::end(built_in), "--optimizer {} has no rule", args.optimizer);
  return found->make(args);
}

}  // namespace teratron
