// The whole weights of a training, by the names of checkpoints or of Hugging Face. Functions are collective
// unless they say otherwise.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "teratron/hf/weight_map.h"
#include "teratron/train/trainer.h"

namespace teratron::python {

/// A parameter of the model, whatever ranks have parts of it.
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;  // without padding
  at::ScalarType dtype;
};

/// One of our tensors as those of Hugging Face whose rows it has (hf/weight_map.h).
struct HfPieces {
  std::vector<HfSource> sources;
  std::vector<RowSlice> slices;
};

/// All parameters of the model, on every rank.
std::vector<ParameterInfo> whole_parameters(const Trainer& trainer);
/// The whole parameter, on every rank's device.
at::Tensor gathered(Trainer& trainer, const ParameterInfo& info);
/// Pieces of each parameter, in order, for a model of these settings (checkpoint_config()).
/// UserError(checkpoint) if no model of transformers is this one. Not collective.
std::vector<HfPieces> hf_pieces(const std::vector<ParameterInfo>& infos, const std::string& config);
/// Writes this rank's part of a whole parameter. Not collective.
void assign(Trainer& trainer, const std::string& name, const at::Tensor& whole);
/// After the last assign(): the optimizer takes the new weights.
void finish_assignment(Trainer& trainer);

}  // namespace teratron::python
