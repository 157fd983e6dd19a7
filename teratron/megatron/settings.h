// The settings of a model, from the arguments saved in a checkpoint of Megatron-LM and from its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/megatron/names.h"
#include "teratron/pickle/value.h"

namespace teratron {

/// What the tensors are by our names, joined, with the vocabulary's padding.
using MegatronShapes = std::map<std::string, std::vector<int64_t>>;

struct MegatronSource {
  const MegatronModel* model = nullptr;
  const PickleValue* args = nullptr;  // a dict; nullptr if there are none
  MegatronShapes shapes;
  int64_t pipeline_ranks = 1;
  std::string where;
};

/// `given` are the user's, by the name of the setting; they override the saved ones. `otherwise` are those of
/// settings that are neither saved, nor given, nor follow from the shapes. UserError(config) if one that is
/// needed is missing. A model of 24 layers of width 1024
/// without arguments is taken for one of those that NVIDIA published, which have 16 heads.
nlohmann::json megatron_settings(const MegatronSource& source, const nlohmann::json& given,
                                 const nlohmann::json& otherwise = nlohmann::json::object());

/// Sets what layers with recurrences show beside the saved arguments: the pattern of a hybrid, the layers of
/// a GPT with linear attention, sizes. UserError if these do not fit; nothing of other models.
void take_recurrent_layers(const MegatronSource& source, nlohmann::json& settings);

/// The vocabulary without padding, as far as the saved arguments tell; 0: unknown.
int64_t saved_vocabulary(const PickleValue* args);

}  // namespace teratron
