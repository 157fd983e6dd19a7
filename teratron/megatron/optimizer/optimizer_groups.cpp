#include "teratron/megatron/optimizer/optimizer_groups.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/hf/float_convert.h"
#include "teratron/megatron/train_state.h"

namespace teratron {

namespace {

using Kind = PickleValue::Kind;

bool has_flag(const PickleValue& group, std::string_view name) {
  const PickleValue* const value = group.find(name);
  return value != nullptr && value->integer() != 0;
}

GroupKind kind_of_group(const PickleValue& group) {
  GroupKind kind{.decoupled = has_flag(group, "is_decoupled_lr"),
                 .expert = has_flag(group, "is_expert_parallel")};
  for (const char* name : {"wd_mult", "weight_decay"}) {
    const PickleValue* const value = group.find(name);
    if (value == nullptr) continue;
    kind.decayed = number_of(*value, nullptr) != 0;
    break;
  }
  return kind;
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

std::vector<AdamDict> adams_of(const PickleValue& root) {
  const PickleValue* const found = root.find("optimizer");
  if (found == nullptr) return {};
  std::vector<AdamDict> adams;
  const auto add = [&adams](const PickleValue& outer) {
    const PickleValue* const inner = outer.find("optimizer");
    const PickleValue& holder = inner == nullptr ? outer : *inner;
    adams.push_back({.outer = &outer, .state = holder.find("state"), .groups = holder.find("param_groups")});
  };
  if (!found->is(Kind::list)) add(*found);
  for (size_t i = 0; found->is(Kind::list) && i < found->items().size(); ++i) add(*found->items()[i]);
  return adams;
}

AdamDict adam_of(const PickleValue& root) {
  const std::vector<AdamDict> adams = adams_of(root);
  return adams.empty() ? AdamDict() : adams[0];
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

StageParameters parameters_of(const std::vector<std::vector<SavedParameter>>& virtual_stages) {
  StageParameters stages;
  for (const auto& stage : virtual_stages) stages.emplace_back(stage.begin(), stage.end());
  return stages;
}

bool agrees(const SavedParameter& parameter, const ParameterState& state) {
  const auto found = state.find("param");
  if (found == state.end() || parameter.weight->numel() == 0) return true;
  const Dtype dtype = parameter.weight->dtype();
  return ends_of(*found->second, dtype) == ends_of(*parameter.weight, dtype);
}

}  // namespace teratron
