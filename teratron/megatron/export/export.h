// Export of settings, weights and the state of a training to Megatron-LM's formats: `torch`, version 3.0, as
// its legacy models of core 0.4 to 0.7 or v2, or Megatron-Core's GPT, save it, and `torch_dist`. Streaming:
// needs the memory of a few blocks, whatever the sizes of the tensors.
//
// Adam's state is written as it is read (optimizer/optimizer_state.h, dist_checkpoint.h). What is saved of
// random numbers in Megatron-LM has no counterpart here, where they follow from the seed and the sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "teratron/base/dtype.h"
#include "teratron/hf/convert.h"
#include "teratron/megatron/written_model.h"

namespace teratron {

enum class MegatronFormat : uint8_t { torch, torch_dist };

struct MegatronExport {
  /// Must not exist, or be empty. The checkpoint in it is "release" if it has no iteration, else iter_N.
  std::filesystem::path destination;
  MegatronFormat format = MegatronFormat::torch;
  int64_t tensor_ranks = 1;
  int64_t stages = 1;
  int64_t expert_ranks = 1;  // the experts of a rank are split over tensor ranks
  /// Adam's state as the distributed optimizer of 22.x to 23.06 saves it, in the files of so many
  /// data-parallel ranks; nullopt: as the optimizer of all ranks.
  std::optional<int64_t> optimizer_ranks;
  bool optimizer = true;                                // false: weights alone
  std::optional<Dtype> dtype;                           // of the result; default: as saved
  std::optional<int64_t> make_vocab_size_divisible_by;  // default: as saved
  /// Default: legacy_core, of models with experts core; with optimizer_ranks legacy_v2. In torch_dist names
  /// do not depend on it.
  std::optional<MegatronNames> names;
};

/// Padding of the vocabulary repeats its last row, as Megatron-LM's own tool does. UserError(config) if the
/// layout does not divide the model, UserError(checkpoint) if Megatron-LM does not have such a model.
ConversionReport export_megatron(const CheckpointSource& source, const MegatronExport& request);

}  // namespace teratron
