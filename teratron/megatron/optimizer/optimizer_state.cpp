#include "teratron/megatron/optimizer/optimizer_state.h"

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
  WholeStates(const MegatronRankFiles& files, const AdamDict& adam,
              const std::vector<std::vector<SavedParameter>>& stages)
      : files_(files), adam_(adam), stages_(stages) {}

  std::vector<std::vector<ParameterState>> read() const {
    std::vector<std::vector<ParameterState>> states;
    std::vector<ParameterPlace> places;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      states.emplace_back(stages_[stage].size());
      for (size_t i = 0; i < stages_[stage].size(); ++i) places.push_back({stage, i});
    }
    const auto table = states_by_number(*adam_.state, places.size(), files_.where);
    const auto groups = divide_into_groups(*adam_.groups, places, stages_);
    size_t number = 0;
    for (size_t group = 0; group < groups.size(); ++group) {
      for (size_t i = 0; i < groups[group].size(); ++i, ++number) {
        if (number >= table.size()) break;
        const auto& [stage, index] = groups[group][i];
        const SavedParameter& parameter = stages_[stage][index];
        ParameterState& state = states[stage][index];
        for (const auto& [name, type] : adam_states)
          state[std::string(name)] = tensor(table[number]->find(name), parameter);
        if (const PickleValue* const weights = master(group, i)) state["param"] = tensor(weights, parameter);
        if (!agrees(parameter, state))
          refuse_optimizer(fmt::format("its fp32 weights of {} are others", printable(parameter.path)),
                           files_.where);
      }
    }
    if (number != places.size()) refuse_optimizer("its groups are not by weight decay", files_.where);
    return states;
  }

 private:
  TensorSourcePtr tensor(const PickleValue* value, const SavedParameter& parameter) const {
    if (value == nullptr || !value->is(Kind::tensor) || value->tensor().shape != parameter.shape)
      refuse_optimizer(fmt::format("that of {} has another shape", printable(parameter.path)), files_.where);
    return tensor_of_file(files_.model, value->tensor());
  }
  const PickleValue* master(size_t group, size_t number) const {
    for (const char* name : {"fp32_from_fp16_params", "fp32_from_fp16"}) {
      const PickleValue* const groups = adam_.outer->find(name);
      if (groups != nullptr && group < groups->items().size() &&
          number < groups->items()[group]->items().size())
        return groups->items()[group]->items()[number];
    }
    return nullptr;
  }

  const MegatronRankFiles& files_;
  const AdamDict& adam_;
  const std::vector<std::vector<SavedParameter>>& stages_;
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
  const AdamDict adam = adam_of(file->root());
  if (adam.outer == nullptr) return result;
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
    result.states = WholeStates(files, adam, virtual_stages).read();
  }
  return result;
}

}  // namespace teratron
