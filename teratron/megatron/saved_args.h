// The arguments in a checkpoint of Megatron-LM, from our settings.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "teratron/base/dtype.h"
#include "teratron/megatron/legacy_tree.h"
#include "teratron/pickle/pickle_writer.h"

namespace teratron {

struct SavedArgs {
  MegatronFamily family = MegatronFamily::gpt;
  nlohmann::json settings;  // of our checkpoint, complete
  nlohmann::json state;     // of our checkpoint: counters
  MegatronStages stages;
  MegatronNames names = MegatronNames::legacy_core;
  int64_t tensor_ranks = 1;
  int64_t expert_ranks = 1;
  int64_t vocabulary = 0;
  int64_t padded_vocabulary = 0;
  Dtype dtype = Dtype::f32;
};

/// UserError(checkpoint) if Megatron-LM's models with these names cannot compute what the settings say.
void check_megatron_model(const nlohmann::json& settings, MegatronNames names, const std::string& where);

/// Writes a Namespace.
void write_args(const SavedArgs& saved, PickleWriter& pickle);

}  // namespace teratron
