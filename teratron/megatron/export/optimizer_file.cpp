#include "teratron/megatron/export/optimizer_file.h"

#include <algorithm>

#include "teratron/optim/rules/adam_states.h"

namespace teratron {

using nlohmann::json;

namespace {

// The number that an optimizer gives to a parameter, and what it has of it.
struct NumberedPart {
  size_t parameter = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// One Adam: the numbers of its parameters follow from their groups.
struct NumberedGroups {
  std::vector<GroupKind> kinds;
  std::vector<std::vector<NumberedPart>> groups;
};

double setting(const ExportPlan& plan, const char* name) {
  const json value = plan.args.settings.value(name, json());
  return value.is_number() ? value.get<double>() : 0.0;
}

class OptimizerPickle {
 public:
  OptimizerPickle(const ExportPlan& plan, const WrittenParameters* parameters, TensorFile& file)
      : plan_(plan), parameters_(parameters), file_(file), pickle_(file.pickle) {}

  /// In the wrapper of an optimizer that has under the key `masters`, group by group, copies in fp32 of the
  /// weights of other dtypes.
  void add_wrapped(const NumberedGroups& adam, const char* masters) {
    pickle_.begin(PickledDict::plain);
    pickle_.text("optimizer");
    add_adam(adam);
    add_scaler();
    pickle_.text(masters);
    pickle_.begin_list();
    for (const auto& group : adam.groups) {
      pickle_.begin_list();
      for (const NumberedPart& part : group) {
        if (weight_dtype(plan_, parameters_->weights[part.parameter]) != Dtype::f32) add_state("param", part);
      }
      pickle_.end_list();
    }
    pickle_.end_list();
    pickle_.end(PickledDict::plain);
  }

  void add_adam(const NumberedGroups& adam) {
    pickle_.begin(PickledDict::plain);
    pickle_.text("state");
    pickle_.begin(PickledDict::plain);
    int64_t number = 0;
    for (const auto& group : adam.groups) {
      for (const NumberedPart& part : group) {
        pickle_.integer(number++);
        add_states(part);
      }
    }
    pickle_.end(PickledDict::plain);
    add_groups(adam);
    pickle_.end(PickledDict::plain);
  }

  /// Without parameters: torch_dist has the step among the states.
  void add_common(const std::vector<GroupKind>& kinds) {
    pickle_.begin(PickledDict::plain);
    if (plan_.has_masters()) {
      pickle_.text("optimizer");
      pickle_.begin(PickledDict::plain);
    }
    pickle_.text("state");
    pickle_.begin(PickledDict::plain);
    pickle_.text("common_step");
    pickle_.integer(steps());
    pickle_.end(PickledDict::plain);
    add_groups({.kinds = kinds, .groups = {}});
    if (plan_.has_masters()) {
      pickle_.end(PickledDict::plain);
      add_scaler();
    }
    pickle_.end(PickledDict::plain);
  }

 private:
  int64_t steps() const { return plan_.args.state.value("optimizer_steps", plan_.iteration()); }

  void add_states(const NumberedPart& part) {
    pickle_.begin(PickledDict::plain);
    if (is_core(plan_.args.names)) {  // PyTorch's Adam, which Megatron-Core uses where there is no other
      pickle_.text("step");
      file_.add({.number = static_cast<float>(steps())}, {});
    }
    for (const RuleState& state : adam_states) {
      pickle_.text(state.name);
      add_state(std::string(state.name), part);
    }
    pickle_.end(PickledDict::plain);
  }

  void add_state(const std::string& state, const NumberedPart& part) {
    const RankParameter& parameter = parameters_->stages[0][part.parameter];
    WrittenPart written =
        state_part(plan_, parameters_->weights[part.parameter], state, parameters_->tensor_rank);
    const bool whole = part.end - part.begin == written.elements();
    written.begin = part.begin;
    written.end = part.end;
    file_.add(std::move(written), whole && plan_.args.optimizer_ranks == 0
                                      ? parameter.shape
                                      : std::vector<int64_t>{part.end - part.begin});
  }

  void add_groups(const NumberedGroups& adam) {
    pickle_.text("param_groups");
    pickle_.begin_list();
    int64_t number = 0;
    for (size_t i = 0; i < adam.kinds.size(); ++i) {
      pickle_.begin(PickledDict::plain);
      add_settings(adam.kinds[i]);
      if (!adam.groups.empty()) {
        pickle_.text("params");
        pickle_.begin_list();
        for (size_t member = 0; member < adam.groups[i].size(); ++member) pickle_.integer(number++);
        pickle_.end_list();
      }
      pickle_.end(PickledDict::plain);
    }
    pickle_.end_list();
  }

  void add_settings(const GroupKind& kind) {
    const double decayed = kind.decayed ? 1.0 : 0.0;
    const json schedule = plan_.args.state.value("opt_param_scheduler", json::object());
    pickle_.text("lr");  // the schedule sets it
    pickle_.real(schedule.value("max_lr", setting(plan_, "lr")));
    pickle_.text("bias_correction");
    pickle_.boolean(true);
    pickle_.text("betas");
    pickle_.begin_tuple();
    pickle_.real(setting(plan_, "adam_beta1"));
    pickle_.real(setting(plan_, "adam_beta2"));
    pickle_.end_tuple();
    for (const auto& [name, value] : {std::pair{"eps", setting(plan_, "adam_eps")},
                                      {"weight_decay", decayed * setting(plan_, "weight_decay")},
                                      {"wd_mult", decayed},
                                      {"lr_mult", 1.0}}) {
      pickle_.text(name);
      pickle_.real(value);
    }
    for (const auto& [name, value] :
         {std::pair{"is_expert_parallel", kind.expert}, {"is_decoupled_lr", false}}) {
      pickle_.text(name);
      pickle_.boolean(value);
    }
    pickle_.text("step");
    pickle_.integer(steps());
  }

  void add_scaler() {
    const json scaler = plan_.args.state.value("grad_scaler", json::object());
    if (plan_.args.dtype != Dtype::f16 || !scaler.contains("scale")) return;
    pickle_.text("grad_scaler");
    pickle_.begin(PickledDict::plain);
    pickle_.text("scale");
    file_.add({.number = scaler["scale"].get<float>()}, {1});
    for (const char* name : {"growth_tracker", "hysteresis_tracker"}) {
      pickle_.text(name);
      pickle_.integer(scaler.value(name, int64_t{0}));
    }
    pickle_.end(PickledDict::plain);
  }

  const ExportPlan& plan_;
  const WrittenParameters* parameters_;
  TensorFile& file_;
  PickleWriter& pickle_;
};

GroupOrder group_order(const ExportPlan& plan) {
  return plan.args.names == MegatronNames::legacy_v2 ? GroupOrder::decayed_first : GroupOrder::as_met;
}

NumberedGroups whole_groups(const ExportPlan& plan, const WrittenParameters& parameters,
                            const std::vector<ParameterPlace>& places) {
  NumberedGroups result{.kinds = usual_groups(parameters.stages, places, group_order(plan)), .groups = {}};
  for (const auto& group : divide_into_groups(result.kinds, places, parameters.stages)) {
    auto& members = result.groups.emplace_back();
    for (const ParameterPlace& place : group)
      members.push_back({place.number, 0, numel(parameters.stages[0][place.number])});
  }
  return result;
}

}  // namespace

WrittenParameters written_parameters(const ExportPlan& plan, const std::vector<MegatronEntry>& entries,
                                     int64_t tensor_rank) {
  std::vector<std::pair<std::string, std::string>> found;  // path, weight
  for (const MegatronEntry& entry : entries) {
    std::string path;
    for (const std::string& key : entry.path) path += key + ".";
    if (!entry.tensor.empty() && !is_buffer(entry.tensor)) found.emplace_back(path + entry.key, entry.tensor);
  }
  if (!is_core(plan.args.names))
    std::ranges::stable_sort(found, {}, [](const auto& entry) { return place_in_legacy_model(entry.first); });
  WrittenParameters parameters{.stages = {{}}, .weights = {}, .tensor_rank = tensor_rank};
  for (const auto& [path, weight] : found) {
    parameters.weights.push_back(weight);
    parameters.stages[0].push_back(
        {.path = path,
         .shape = shard_of(plan, weight, tensor_rank).local_shape(),
         .decoupled = is_embedding_or_output(path),
         .expert = plan.args.expert_ranks > 1 && path.find("mlp.experts.") != path.npos});
  }
  return parameters;
}

void add_whole_optimizer(const ExportPlan& plan, const WrittenParameters& parameters, TensorFile& file) {
  OptimizerPickle pickle(plan, &parameters, file);
  const auto add = [&](const std::vector<ParameterPlace>& places) {
    const NumberedGroups adam = whole_groups(plan, parameters, places);
    if (plan.has_masters()) return pickle.add_wrapped(adam, "fp32_from_fp16_params");
    pickle.add_adam(adam);
  };
  std::vector<ParameterPlace> dense, experts;
  for (const ParameterPlace& place : places_of(parameters.stages))
    (parameters.stages[0][place.number].expert ? experts : dense).push_back(place);
  if (plan.args.expert_ranks == 1) return add(dense);
  file.pickle.begin_list();
  add(dense);
  if (!experts.empty()) add(experts);
  file.pickle.end_list();
}

void add_optimizer_shard(const ExportPlan& plan, const WrittenParameters& parameters, int64_t data_rank,
                         TensorFile& file) {
  const auto shards = shards_of_rank(parameters.stages, data_rank, plan.args.optimizer_ranks);
  std::vector<ParameterPlace> places;
  for (const ParameterShard& shard : shards) places.push_back(shard.place);
  // Groups of which the rank has nothing are left out.
  NumberedGroups adam{.kinds = usual_groups(parameters.stages, places, group_order(plan)), .groups = {}};
  for (const auto& group : divide_into_groups(adam.kinds, places, parameters.stages)) {
    auto& members = adam.groups.emplace_back();
    for (const ParameterPlace& place : group) {
      const auto shard = std::ranges::find(shards, place, &ParameterShard::place);
      members.push_back({place.number, shard->begin, shard->end});
    }
  }
  OptimizerPickle(plan, &parameters, file).add_wrapped(adam, "shard_fp32_from_float16_groups");
}

void add_common_optimizer(const ExportPlan& plan, TensorFile& file) {
  OptimizerPickle(plan, nullptr, file).add_common({{.decayed = true}, {.decayed = false}});
}

}  // namespace teratron
