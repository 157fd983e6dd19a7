#include "teratron/megatron/train_state.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "teratron/hf/float_convert.h"

namespace teratron {

using nlohmann::json;

namespace {

using Kind = PickleValue::Kind;

int64_t whole_number(const PickleValue* dict, std::string_view name, int64_t otherwise) {
  const PickleValue* const value = dict == nullptr ? nullptr : dict->find(name);
  return value != nullptr && value->is(Kind::integer) && value->integer() >= 0 ? value->integer() : otherwise;
}

// Our names and Megatron-LM's, which are its former ones second.
constexpr std::pair<const char*, const char*> schedule_names[] = {
    {"max_lr", "start_lr"},
    {"lr_warmup_steps", "warmup_steps"},
    {"num_steps", "num_iters"},
    {"lr_decay_style", "decay_style"},
    {"lr_decay_steps", "decay_steps"},
    {"min_lr", "min_lr"},
    {"start_wd", "start_wd"},
    {"end_wd", "end_wd"},
    {"wd_incr_style", "wd_incr_style"},
    {"wd_incr_steps", "wd_incr_steps"},
    {"wsd_decay_steps", "wsd_decay_steps"},
    {"lr_wsd_decay_style", "lr_wsd_decay_style"}};

json plain_value(const PickleValue& value) {
  if (value.is(Kind::integer)) return value.integer();
  if (value.is(Kind::real)) return value.real();
  if (value.is(Kind::text)) return value.text();
  return nullptr;
}

json schedule_state(const PickleValue* saved, const PickleValue* args) {
  json state = json::object();
  if (saved == nullptr) return state;
  for (const auto& [name, former] : schedule_names) {
    const PickleValue* value = saved->find(name);
    if (value == nullptr) value = saved->find(former);
    if (value != nullptr) state[name] = plain_value(*value);
  }
  // Releases without a schedule of the weight decay.
  const PickleValue* const decay = args == nullptr ? nullptr : args->find("weight_decay");
  if (state.contains("num_steps") && !state.contains("start_wd") && decay != nullptr) {
    state["start_wd"] = state["end_wd"] = plain_value(*decay);
    state["wd_incr_style"] = "constant";
    state["wd_incr_steps"] = state.value("lr_decay_steps", json(0));
  }
  return state;
}

json scaler_state(const SavedCounters& saved) {
  json state = json::object();
  if (saved.scaler == nullptr) return state;
  const PickleValue* const scale = saved.scaler->find("scale");
  const double value = scale == nullptr ? NAN : number_of(*scale, saved.scaler_file);
  if (!std::isfinite(value)) return state;
  return {{"scale", value},
          {"growth_tracker", whole_number(saved.scaler, "growth_tracker", 0)},
          {"hysteresis_tracker", whole_number(saved.scaler, "hysteresis_tracker", 1)}};
}

}  // namespace

double number_of(const PickleValue& value, const TorchFile* file) {
  if (value.is(Kind::integer)) return static_cast<double>(value.integer());
  if (value.is(Kind::real)) return value.real();
  if (!value.is(Kind::tensor) || file == nullptr || numel(value.tensor()) != 1) return NAN;
  const Dtype dtype = file->dtype_of(value.tensor());
  std::vector<char> bytes = file->read(value.tensor());
  if (dtype == Dtype::i64 || dtype == Dtype::i32) {
    int64_t integer = 0;
    std::memcpy(&integer, bytes.data(), bytes.size());
    return static_cast<double>(dtype == Dtype::i32 ? static_cast<int32_t>(integer) : integer);
  }
  if (!is_convertible_float(dtype)) return NAN;
  bytes = convert_floats(std::move(bytes), dtype, Dtype::f32);
  float number = 0;
  std::memcpy(&number, bytes.data(), sizeof(number));
  return static_cast<double>(number);
}

void write_scheduler(const json& state, PickleWriter& pickle) {
  const json saved = state.value("opt_param_scheduler", json::object());
  pickle.begin(PickledDict::plain);
  for (const auto& [name, former] : schedule_names) {
    const json value = saved.value(name, json());
    if (value.is_null()) continue;
    pickle.text(name);
    if (value.is_number_integer()) {
      pickle.integer(value);
    } else if (value.is_number()) {
      pickle.real(value);
    } else {
      pickle.text(value.get<std::string>());
    }
  }
  pickle.end(PickledDict::plain);
}

json train_state(const SavedCounters& saved) {
  const PickleValue& common = *saved.common;
  const PickleValue* const args = common.find("args");
  const int64_t iteration = whole_number(&common, "iteration", whole_number(&common, "total_iters", 0));
  if (iteration == 0) return json::object();
  json state = {{"iteration", iteration},
                {"consumed_train_samples", whole_number(args, "consumed_train_samples", 0)},
                {"consumed_valid_samples", whole_number(args, "consumed_valid_samples", 0)},
                {"optimizer_steps", saved.optimizer_steps < 0 ? iteration : saved.optimizer_steps},
                {"opt_param_scheduler", schedule_state(saved.scheduler, args)},
                {"grad_scaler", scaler_state(saved)}};
  const PickleValue* const operations = common.find("num_floating_point_operations_so_far");
  const double flops = operations == nullptr ? NAN : number_of(*operations, nullptr);
  if (std::isfinite(flops)) state["num_floating_point_operations_so_far"] = flops;
  return state;
}

}  // namespace teratron
