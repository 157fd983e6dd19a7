// Which tensors a rank of Megatron-LM's legacy models (core 0.4 to 0.7, or v2) saves, under which keys.
// core_tree.h has those of Megatron-Core's models.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/megatron/written_model.h"

namespace teratron {

/// In the order in which Megatron-LM saves them.
std::vector<MegatronEntry> legacy_entries(const WrittenModel& model, int64_t stage);

}  // namespace teratron
