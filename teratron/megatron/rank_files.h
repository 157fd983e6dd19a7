// The files of a checkpoint in Megatron-LM's format `torch`, in a folder or a zip file.
//
//   DIR/latest_checkpointed_iteration.txt    a number, or "release"
//   DIR/iter_0000050/mp_rank_01_002/model_optim_rng.pt    tensor rank 1, pipeline rank 2
//   DIR/iter_0000050/mp_rank_01_002_003/model_optim_rng.pt    expert rank 3; mp_rank_01_003 without stages
//   DIR/iter_0000050/mp_rank_01_002/distrib_optim.pt      its distributed optimizer (core 0.3 on)
//   DIR/iter_0000050/mp_rank_00/model_rng.pt              in releases before that, beside
//   DIR/iter_0000050/mp_rank_00_001/optim.pt              the optimizer of data-parallel rank 1
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/pickle/torch_file.h"

namespace teratron {

struct MegatronRankFiles {
  std::shared_ptr<const TorchFile> model;                       // model_optim_rng.pt or model_rng.pt
  std::shared_ptr<const TorchFile> distributed;                 // distrib_optim.pt; nullptr: none
  std::vector<std::shared_ptr<const TorchFile>> data_parallel;  // optim.pt of each data-parallel rank
  /// The models of the expert ranks after the first; each has its share of the experts, and all else too.
  std::vector<std::shared_ptr<const TorchFile>> experts;
  std::string where;           // for errors
  bool with_optimizer = true;  // false: its states are not wanted
};

struct MegatronFiles {
  std::string where;                 // the folder or zip file, for errors
  std::vector<ByteSourcePtr> bytes;  // of all files
  bool release = false;              // in a folder of this name: the model alone
  /// [pipeline rank][tensor rank]
  std::vector<std::vector<MegatronRankFiles>> stages;
};

/// Opens the files of all ranks, those of optimizers if `with_optimizer`; `source` is a --save folder, a
/// folder of one iteration, a zip file of these, or one .pt file. Without `step` the iteration of the tracker
/// file, else the newest. UserError(checkpoint) if ranks are missing.
MegatronFiles open_megatron_files(const std::filesystem::path& source, std::optional<int64_t> step,
                                  bool with_optimizer);

/// Whether a folder is named "release", as Megatron-LM names that of a model alone.
bool is_release(const std::filesystem::path& folder);

}  // namespace teratron
