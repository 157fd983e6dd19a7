// Adam's state in Megatron-LM's legacy checkpoints, which name no parameter: it is found by the order in
// which the model has its parameters.
//
//   without distributed optimizer  model_optim_rng.pt, key "optimizer": a state for each parameter by number,
//                                  numbered group by group, and fp32 weights group by group
//   distributed, core 0.3 on       distrib_optim.pt beside it: flat buffers of all parameters, last first
//   distributed, 22.x to 23.06     mp_rank_TT[_PPP]_DDD/optim.pt: what data-parallel rank DDD has of such
//                                  buffers, parameter by parameter
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "teratron/megatron/optimizer/rank_parameters.h"
#include "teratron/megatron/rank_files.h"
#include "teratron/megatron/tensor_source.h"

namespace teratron {

struct SavedParameter : RankParameter {
  TensorSourcePtr weight;
};

/// By name: adam_states and, where they are, fp32 weights as "param".
using ParameterState = std::map<std::string, TensorSourcePtr>;

struct RankOptimizer {
  /// One for each parameter of each virtual stage; empty if there is no state.
  std::vector<std::vector<ParameterState>> states;
  int64_t steps = -1;                      // of Adam; -1: not known
  const PickleValue* scheduler = nullptr;  // nullptr: none
  const PickleValue* scaler = nullptr;
  std::shared_ptr<const TorchFile> file;  // that these two are in
};

/// UserError(checkpoint) if there is a state that does not belong to these parameters.
RankOptimizer read_rank_optimizer(const MegatronRankFiles& files,
                                  const std::vector<std::vector<SavedParameter>>& virtual_stages);

}  // namespace teratron
