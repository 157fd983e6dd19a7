// The counters of a training, from what Megatron-LM saved and back.
#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

#include "teratron/pickle/pickle_writer.h"
#include "teratron/pickle/torch_file.h"

namespace teratron {

struct SavedCounters {
  const PickleValue* common = nullptr;     // a dict with iteration, args...
  const PickleValue* scheduler = nullptr;  // nullptr: none
  const PickleValue* scaler = nullptr;     // nullptr: none
  const TorchFile* scaler_file = nullptr;  // that the scale is in, if it is a tensor
  int64_t optimizer_steps = -1;            // -1: not known
};

/// The state of our checkpoints; an empty object if there is no iteration.
nlohmann::json train_state(const SavedCounters& saved);

/// The value of "opt_param_scheduler", a dict, from the state of a checkpoint of ours.
void write_scheduler(const nlohmann::json& state, PickleWriter& pickle);

/// A number, or a tensor with one element; NaN if it is neither.
double number_of(const PickleValue& value, const TorchFile* file);

}  // namespace teratron
