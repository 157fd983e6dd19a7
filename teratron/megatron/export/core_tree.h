// Which tensors a rank of one of Megatron-Core's models saves, under which names: one flat dict.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/megatron/written_model.h"

namespace teratron {

/// What the ranks of a stage with this expert rank save; they number their experts from 0.
std::vector<MegatronEntry> core_entries(const WrittenModel& model, int64_t stage, int64_t expert_rank);

}  // namespace teratron
