// Adam's state in the files of ranks: the counterpart of optimizer/optimizer_state.h.
#pragma once

#include <vector>

#include "teratron/megatron/export/part_writer.h"
#include "teratron/megatron/optimizer/rank_parameters.h"
#include "teratron/megatron/written_model.h"

namespace teratron {

/// The parameters of a rank, in the order of its optimizer, and their weights by our names.
struct WrittenParameters {
  StageParameters stages;  // one
  std::vector<std::string> weights;
  int64_t tensor_rank = 0;
};
WrittenParameters written_parameters(const ExportPlan& plan, const std::vector<MegatronEntry>& entries,
                                     int64_t tensor_rank);

/// The value of "optimizer" in model_optim_rng.pt.
void add_whole_optimizer(const ExportPlan& plan, const WrittenParameters& parameters, TensorFile& file);
/// The value of "optimizer" in the file optim.pt of a data-parallel rank.
void add_optimizer_shard(const ExportPlan& plan, const WrittenParameters& parameters, int64_t data_rank,
                         TensorFile& file);
/// The value of "optimizer" in common.pt of torch_dist: without the states of parameters, which are tensors
/// of the checkpoint.
void add_common_optimizer(const ExportPlan& plan, TensorFile& file);

}  // namespace teratron
