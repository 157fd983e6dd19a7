#include "teratron/megatron/optimizer/optimizer_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/megatron/optimizer/flat_optimizer.h"
#include "teratron/megatron/optimizer/optimizer_groups.h"
#include "teratron/megatron/train_state.h"
#include "teratron/optim/rules/adam_states.h"

namespace teratron {

namespace {

using Kind = PickleValue::Kind;

// Without distributed optimizer.
class WholeStates {
 public:
  WholeStates(const MegatronRankFiles& files, const std::vector<std::vector<SavedParameter>>& stages)
      : files_(files), stages_(stages), parameters_(parameters_of(stages)) {
    for (const auto& stage : stages) states_.emplace_back(stage.size());
  }

  std::vector<std::vector<ParameterState>> read(const std::vector<AdamDict>& adams) {
    size_t found = 0;
    for (const AdamDict& adam : adams) found += add(adam, adams.size() > 1);
    if (found != places_of(parameters_).size())
      refuse_optimizer("its groups are not by weight decay", files_.where);
    return std::move(states_);
  }

 private:
  // Returns the number of parameters. Of two Adams one has the experts, and the other has none.
  size_t add(const AdamDict& adam, bool divided) {
    if (!adam) refuse_optimizer("a part of it is missing", files_.where);
    const std::vector<GroupKind> kinds = kinds_of_groups(*adam.groups);
    std::vector<ParameterPlace> places = places_of(parameters_);
    if (divided) {
      const bool expert = std::ranges::any_of(kinds, &GroupKind::expert);
      std::erase_if(places, [&](const ParameterPlace& place) {
        return parameters_[place.stage][place.number].expert != expert;
      });
    }
    const auto table = states_by_number(*adam.state, places.size(), files_.where);
    const auto groups = divide_into_groups(kinds, places, parameters_);
    size_t number = 0;
    for (size_t group = 0; group < groups.size(); ++group) {
      size_t masters = 0;  // of the group, whose weights of fp32 have none
      for (size_t i = 0; i < groups[group].size(); ++i, ++number) {
        if (number >= table.size()) refuse_optimizer("its groups are not by weight decay", files_.where);
        const ParameterPlace& place = groups[group][i];
        const bool wide = stages_[place.stage][place.number].weight->dtype() == Dtype::f32;
        add_state(place, *table[number], wide ? nullptr : master(adam, group, masters++));
      }
    }
    return number;
  }

  void add_state(const ParameterPlace& place, const PickleValue& saved, const PickleValue* weights) {
    const SavedParameter& parameter = stages_[place.stage][place.number];
    ParameterState& state = states_[place.stage][place.number];
    for (const auto& [name, type] : adam_states)
      state[std::string(name)] = tensor(saved.find(name), parameter);
    if (weights) state["param"] = tensor(weights, parameter);
    if (!agrees(parameter, state))
      refuse_optimizer(fmt::format("its fp32 weights of {} are others", printable(parameter.path)),
                       files_.where);
  }
  TensorSourcePtr tensor(const PickleValue* value, const SavedParameter& parameter) const {
    if (value == nullptr || !value->is(Kind::tensor) || value->tensor().shape != parameter.shape)
      refuse_optimizer(fmt::format("that of {} has another shape", printable(parameter.path)), files_.where);
    return tensor_of_file(files_.model, value->tensor());
  }
  static const PickleValue* master(const AdamDict& adam, size_t group, size_t number) {
    for (const char* name : {"fp32_from_fp16_params", "fp32_from_fp16"}) {
      const PickleValue* const groups = adam.outer->find(name);
      if (groups != nullptr && group < groups->items().size() &&
          number < groups->items()[group]->items().size())
        return groups->items()[group]->items()[number];
    }
    return nullptr;
  }

  const MegatronRankFiles& files_;
  const std::vector<std::vector<SavedParameter>>& stages_;
  StageParameters parameters_;
  std::vector<std::vector<ParameterState>> states_;
};

const PickleValue* find_step(const AdamDict& adam) {
  const auto& states = adam.state->items();
  if (states.size() >= 2 && states[1]->find("step") != nullptr) return states[1]->find("step");
  return adam.groups->items().empty() ? nullptr : adam.groups->items()[0]->find("step");
}

}  // namespace

RankOptimizer read_rank_optimizer(const MegatronRankFiles& files,
                                  const std::vector<std::vector<SavedParameter>>& virtual_stages) {
  const std::shared_ptr<const TorchFile> file =
      files.data_parallel.empty() ? files.model : files.data_parallel[0];
  RankOptimizer result{.scheduler = file->root().find("opt_param_scheduler"), .file = file};
  if (result.scheduler == nullptr) result.scheduler = file->root().find("lr_scheduler");
  const std::vector<AdamDict> adams = adams_of(file->root());
  if (adams.empty()) return result;
  const AdamDict& adam = adams[0];
  result.scaler = adam.outer->find("grad_scaler");
  const PickleValue* const step = adam ? find_step(adam) : nullptr;
  const double steps = step == nullptr ? NAN : number_of(*step, file.get());
  if (std::isfinite(steps)) result.steps = static_cast<int64_t>(steps);
  if (!files.with_optimizer) return result;
  if (files.distributed != nullptr) {
    result.states = read_flat_states(files.distributed, virtual_stages, files.where);
  } else if (!files.data_parallel.empty()) {
    result.states = read_sharded_states(files.data_parallel, virtual_stages, files.where);
  } else if (adam && !adam.state->items().empty()) {
    result.states = WholeStates(files, virtual_stages).read(adams);
  }
  return result;
}

}  // namespace teratron
