// What files of other programs hold of a family's models. Without torch, unlike models/family.h, so that
// conversions do not need it. The folder of each family in families.def defines NAME_formats().
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "teratron/models/hf_map.h"
#include "teratron/models/megatron_model.h"

namespace teratron {

struct FamilyFormats {
  std::string family = {};  // set by family_formats()
  std::vector<HfFamily> hf = {};
  /// Published model types that are not read, and why.
  std::vector<std::pair<std::string_view, std::string_view>> refused_hf = {};
  std::optional<HfTensorRow> hf_classifier =
      {};                                      // the head of ForSequenceClassification; none: no such class
  std::optional<MegatronModel> megatron = {};  // none: Megatron-LM has no such models
};

/// In the order of families.def.
const std::vector<FamilyFormats>& family_formats();

/// The family of a checkpoint with this configuration. The first releases had only the first, and named none.
std::string saved_family(const nlohmann::json& config);

}  // namespace teratron
