// Host state of a training: what a checkpoint needs in addition to tensors for an exact resume.
#pragma once

#include <string>

#include "teratron/optim/loss_scaler.h"
#include "teratron/optim/lr_schedule.h"
#include "teratron/optim/param_group_rules.h"

namespace teratron {

struct TrainState {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;
  int64_t skipped_train_samples = 0;       // of those consumed, by --iterations-to-skip
  int64_t optimizer_steps = 0;             // that changed the weights
  double floating_point_operations = 0.0;  // by the model's formula
  OptimizerParamScheduler scheduler;
  ParamGroupChoices param_groups = {};
  LossScaler scaler;

  std::string to_json() const;
  /// Restores counters, scheduler, parameter groups and scaler. UserError(checkpoint) if something is
  /// missing.
  void load(const std::string& json, ScheduleLoadRule rule);
};

}  // namespace teratron
