// The files of a checkpoint in Megatron-LM's format `torch`, in a folder or a zip file.
//
//   DIR/latest_checkpointed_iteration.txt    a number, or "release"
//   DIR/iter_0000050/mp_rank_01_002/model_optim_rng.pt    tensor rank 1, pipeline rank 2
//   DIR/release/mp_rank_00/model_rng.pt                   beside an optimizer that is saved apart
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/pickle/torch_file.h"

namespace teratron {

struct MegatronFiles {
  std::string where;  // the folder or zip file, for errors
  /// [pipeline rank][tensor rank]
  std::vector<std::vector<std::shared_ptr<const TorchFile>>> stages;
};

/// Opens the files of all ranks; `source` is a --save folder, a folder of one iteration, a zip file of these,
/// or one .pt file. Without `step` the iteration of the tracker file, else the newest. UserError(checkpoint)
/// if ranks are missing.
MegatronFiles open_megatron_files(const std::filesystem::path& source, std::optional<int64_t> step);

}  // namespace teratron
