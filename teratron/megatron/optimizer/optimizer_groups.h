// What the readers of Megatron-LM's optimizers share: which parameters its groups have, and checks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "teratron/megatron/optimizer/optimizer_state.h"

namespace teratron {

/// UserError(checkpoint).
[[noreturn]] void refuse_optimizer(const std::string& what, const std::string& where);

/// An Adam in the value of "optimizer" of a file: that, or in Megatron-LM's wrapper of it.
struct AdamDict {
  const PickleValue* outer = nullptr;
  const PickleValue* state = nullptr;
  const PickleValue* groups = nullptr;
  explicit operator bool() const { return state != nullptr && groups != nullptr; }
};
/// `root` is a file's. Expert-parallel ranks have a list of two: of dense parameters, and of experts.
std::vector<AdamDict> adams_of(const PickleValue& root);
/// The first of them.
AdamDict adam_of(const PickleValue& root);

/// Each parameter's state, by its number; nullptr: none. UserError(checkpoint) for other numbers.
std::vector<const PickleValue*> states_by_number(const PickleValue& states, size_t count,
                                                 const std::string& where);

/// What the saved groups ("param_groups") say of themselves.
std::vector<GroupKind> kinds_of_groups(const PickleValue& groups);

/// Without the weights.
StageParameters parameters_of(const std::vector<std::vector<SavedParameter>>& virtual_stages);

/// Whether fp32 weights, if there are any, round to the weights at both ends of the parameter.
bool agrees(const SavedParameter& parameter, const ParameterState& state);

}  // namespace teratron
