// The arguments in a checkpoint of Megatron-LM. One list names those that mean the same as our settings, for
// reading and writing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/base/dtype.h"
#include "teratron/megatron/written_model.h"
#include "teratron/pickle/pickle_writer.h"
#include "teratron/pickle/value.h"

namespace teratron {

/// A boolean, number or text among the saved arguments (a dict; nullptr: none are saved); else null.
nlohmann::json saved_arg(const PickleValue* args, std::string_view name);
/// Whether an argument is neither missing, None, False, 0 nor empty.
bool has_value(const PickleValue* args, std::string_view name);
/// Neither null, false nor 0.
bool is_true(const nlohmann::json& value);
/// Whether saved_settings() or write_args() know an argument of this name.
bool is_saved_argument(std::string_view name);
/// The settings that saved arguments give.
nlohmann::json saved_settings(const PickleValue* args);

struct SavedArgs {
  nlohmann::json settings;  // of our checkpoint, complete
  nlohmann::json state;     // of our checkpoint: counters
  MegatronStages stages;
  MegatronNames names = MegatronNames::legacy_core;
  int64_t tensor_ranks = 1;
  int64_t expert_ranks = 1;
  int64_t optimizer_ranks = 0;  // data-parallel ranks of a distributed optimizer; 0: there is none
  int64_t vocabulary = 0;
  int64_t padded_vocabulary = 0;
  Dtype dtype = Dtype::f32;
};

/// UserError(checkpoint) if Megatron-LM's models with these names cannot compute what the settings say.
void check_megatron_model(const nlohmann::json& settings, MegatronNames names, const std::string& where);

/// Writes a Namespace.
void write_args(const SavedArgs& saved, PickleWriter& pickle);
/// Writes the entries of a file's dict before its model: arguments, version, counters.
void add_counters(const SavedArgs& saved, PickleWriter& pickle);

}  // namespace teratron
