#include "teratron/megatron/optimizer/optimizer_groups.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/hf/float_convert.h"
#include "teratron/megatron/train_state.h"

namespace teratron {

namespace {

using Kind = PickleValue::Kind;

struct GroupKind {
  bool decayed = true;
  bool decoupled = false;
  bool operator==(const GroupKind&) const = default;
};

bool has_flag(const PickleValue& group, std::string_view name) {
  const PickleValue* const value = group.find(name);
  return value != nullptr && value->integer() != 0;
}

GroupKind kind_of_group(const PickleValue& group) {
  GroupKind kind{.decoupled = has_flag(group, "is_decoupled_lr")};
  for (const char* name : {"wd_mult", "weight_decay"}) {
    const PickleValue* const value = group.find(name);
    if (value == nullptr) continue;
    kind.decayed = number_of(*value, nullptr) != 0;
    break;
  }
  return kind;
}

// Without any weight decay the first group is that which would have some.
std::vector<GroupKind> kinds_of_groups(const PickleValue& groups) {
  std::vector<GroupKind> kinds;
  for (const PickleValue* group : groups.items()) {
    GroupKind kind = kind_of_group(*group);
    if (groups.items().size() == 2 && kinds.empty()) {
      if (const GroupKind other = kind_of_group(*groups.items()[1]); other == kind) kind.decayed = true;
    } else if (groups.items().size() == 2 && kinds[0] == kind) {
      kind.decayed = false;
    }
    kinds.push_back(kind);
  }
  return kinds;
}

std::vector<char> ends_of(const TensorSource& source, Dtype as) {
  constexpr int64_t sampled = 32;
  const int64_t size = source.numel(), count = std::min(size, sampled), element = size_of(source.dtype());
  std::vector<char> bytes(static_cast<size_t>(2 * count * element));
  source.read(0, count, bytes.data());
  source.read(size - count, size, bytes.data() + count * element);
  return convert_floats(std::move(bytes), source.dtype(), as);
}

}  // namespace

void refuse_optimizer(const std::string& what, const std::string& where) {
  throw checkpoint_error({.what = "the optimizer state does not fit the model: " + what,
                          .where = where,
                          .fix = "Use --no-load-optim to convert the weights alone"});
}

AdamDict adam_of(const PickleValue& root) {
  AdamDict adam{.outer = root.find("optimizer")};
  if (adam.outer == nullptr) return adam;
  const PickleValue* const inner = adam.outer->find("optimizer");
  const PickleValue& holder = inner == nullptr ? *adam.outer : *inner;
  adam.state = holder.find("state");
  adam.groups = holder.find("param_groups");
  return adam;
}

std::vector<const PickleValue*> states_by_number(const PickleValue& states, size_t count,
                                                 const std::string& where) {
  std::vector<const PickleValue*> table(count, nullptr);
  if (states.items().size() != 2 * count)
    refuse_optimizer(fmt::format("it has {} parameters, the model {}", states.items().size() / 2, count),
                     where);
  for (size_t i = 0; i + 1 < states.items().size(); i += 2) {
    const PickleValue& key = *states.items()[i];
    if (!key.is(Kind::integer) || key.integer() < 0 || static_cast<size_t>(key.integer()) >= count)
      refuse_optimizer("its parameters are not numbered", where);
    table[static_cast<size_t>(key.integer())] = states.items()[i + 1];
  }
  return table;
}

std::vector<std::vector<ParameterPlace>> divide_into_groups(
    const PickleValue& groups, const std::vector<ParameterPlace>& parameters,
    const std::vector<std::vector<SavedParameter>>& virtual_stages) {
  const std::vector<GroupKind> kinds = kinds_of_groups(groups);
  const bool decoupled = std::ranges::any_of(kinds, [](const GroupKind& kind) { return kind.decoupled; });
  const auto kind_of = [&](const ParameterPlace& place) {
    const SavedParameter& parameter = virtual_stages[place.stage][place.number];
    return GroupKind{.decayed = parameter.shape.size() > 1 && !parameter.path.ends_with("bias"),
                     .decoupled = decoupled && parameter.decoupled};
  };
  std::vector<std::vector<ParameterPlace>> result;
  for (const GroupKind& kind : kinds) {
    auto& group = result.emplace_back();
    for (const ParameterPlace& place : parameters) {
      if (kind_of(place) == kind) group.push_back(place);
    }
  }
  return result;
}

bool agrees(const SavedParameter& parameter, const ParameterState& state) {
  const auto found = state.find("param");
  if (found == state.end() || parameter.weight->numel() == 0) return true;
  const Dtype dtype = parameter.weight->dtype();
  return ends_of(*found->second, dtype) == ends_of(*parameter.weight, dtype);
}

}  // namespace teratron
