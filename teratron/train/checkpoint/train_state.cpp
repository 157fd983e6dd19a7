#include "teratron/train/checkpoint/train_state.h"

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {

namespace {

int64_t counter(const nlohmann::json& state, const char* key) {
  const auto found = state.find(key);
  // An integer above 2^63 is negative here.
  if (found == state.end() || !found->is_number_integer() || found->get<int64_t>() < 0) {
    throw checkpoint_error({.what = fmt::format("the checkpoint's state has no count '{}'", key),
                            .where = "manifest.json",
                            .fix = "Use --finetune to start a new run from its weights"});
  }
  return found->get<int64_t>();
}

}  // namespace

std::string TrainState::to_json() const {
  nlohmann::json state = {{"iteration", iteration},
                          {"consumed_train_samples", consumed_train_samples},
                          {"consumed_valid_samples", consumed_valid_samples},
                          {"skipped_train_samples", skipped_train_samples},
                          {"optimizer_steps", optimizer_steps},
                          {"num_floating_point_operations_so_far", floating_point_operations},
                          {"opt_param_scheduler", scheduler.state()},
                          {"grad_scaler", scaler.state()}};
  if (!param_groups.empty()) state["param_groups"] = param_groups.state();
  return state.dump();
}

void TrainState::load(const std::string& json, ScheduleLoadRule rule) {
  const nlohmann::json state = nlohmann::json::parse(json);
  iteration = counter(state, "iteration");
  consumed_train_samples = counter(state, "consumed_train_samples");
  consumed_valid_samples = counter(state, "consumed_valid_samples");
  skipped_train_samples =
      state.contains("skipped_train_samples") ? counter(state, "skipped_train_samples") : 0;
  optimizer_steps = counter(state, "optimizer_steps");
  const auto operations = state.find("num_floating_point_operations_so_far");
  if (operations != state.end() && operations->is_number())
    floating_point_operations = operations->get<double>();
  scheduler.load(state.value("opt_param_scheduler", nlohmann::json::object()), rule);
  param_groups.load(state.value("param_groups", nlohmann::json()), rule);
  // Empty if the training that saved it scaled no loss.
  const nlohmann::json loss_scale = state.value("grad_scaler", nlohmann::json::object());
  if (!loss_scale.empty()) scaler.load(loss_scale);
}

}  // namespace teratron
