#include "teratron/optim/optimizer_rule.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/nn/parameter.h"

namespace teratron {

int64_t state_bytes(const OptimizerRule& rule) {
  int64_t bytes = 0;
  for (const RuleState& state : rule.states()) bytes += size_of(state.dtype);
  return bytes;
}

size_t rule_of(const OptimizerRules& rules, const Parameter& parameter) {
  const auto found = std::ranges::find_if(
      rules, [&](const RuleChoice& choice) { return !choice.takes || choice.takes(parameter); });
  TERATRON_ASSERT(found != rules.end(), "no optimizer rule takes {}", parameter.name);
  return static_cast<size_t>(found - rules.begin());
}

}  // namespace teratron
