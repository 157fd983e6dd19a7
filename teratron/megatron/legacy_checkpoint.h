// A checkpoint of Megatron-LM in its format `torch`, of every version, joined from tensor and pipeline ranks.
#pragma once

#include <memory>

#include "teratron/megatron/checkpoint.h"
#include "teratron/megatron/rank_files.h"

namespace teratron {

std::unique_ptr<MegatronCheckpoint> open_legacy_checkpoint(MegatronFiles files);

}  // namespace teratron
