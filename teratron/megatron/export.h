// Export of weights and settings to Megatron-LM's format `torch`, version 3.0, as its legacy models of core
// 0.4 to 0.7 or v2, or Megatron-Core's GPT, save them. Streaming: needs the memory of a few blocks, whatever
// the sizes of the tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "teratron/base/dtype.h"
#include "teratron/hf/convert.h"
#include "teratron/megatron/written_model.h"

namespace teratron {

struct MegatronExport {
  /// Must not exist, or be empty. The checkpoint in it is "release" if it has no iteration, else iter_N.
  std::filesystem::path destination;
  int64_t tensor_ranks = 1;
  int64_t stages = 1;
  int64_t expert_ranks = 1;                             // the experts of a rank are split over tensor ranks
  std::optional<Dtype> dtype;                           // of the result; default: as saved
  std::optional<int64_t> make_vocab_size_divisible_by;  // default: as saved
  std::optional<MegatronNames> names;                   // default: legacy_core, of models with experts core
};

/// Padding of the vocabulary repeats its last row, as Megatron-LM's own tool does. UserError(config) if the
/// layout does not divide the model, UserError(checkpoint) if Megatron-LM does not have such a model.
ConversionReport export_megatron(const CheckpointSource& source, const MegatronExport& request);

}  // namespace teratron
