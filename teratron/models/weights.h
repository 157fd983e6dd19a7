// A model's weights as tensors of a checkpoint (ckpt/checkpoint.h), and their way back into the model.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "teratron/ckpt/checkpoint_source.h"
#include "teratron/ckpt/shared_manifest.h"
#include "teratron/nn/parameter.h"
#include "teratron/optim/optimizer.h"

namespace teratron {

std::vector<StateTensor> parameter_tensors(ParameterSet& parameters);
/// Buffers of one kind; names of those of the training begin with "optimizer.".
std::vector<StateTensor> buffer_tensors(ParameterSet& parameters, Buffer::Kind kind);
/// Parameters and the model's buffers: what inference needs.
std::vector<StateTensor> weight_tensors(ParameterSet& parameters);
/// The tensor in a checkpoint, without memory.
LocalTensor local_tensor(const StateTensor& state, at::ScalarType type);

/// Host memory that tensors are loaded into: the tensor's own if it is on the CPU in the dtype of the
/// checkpoint, else a copy.
class HostTensors {
 public:
  void add(const StateTensor& state, at::ScalarType type);
  const std::vector<LocalTensor>& list() const { return list_; }
  /// Writes the copies to the tensors, once they are loaded.
  void copy_from_host() const;

 private:
  struct Place {
    StateTensor state;
    at::Tensor host;
  };
  std::deque<Place> places_;
  std::vector<LocalTensor> list_;
};

/// Adds all weights, in the dtypes in which they were saved; a notice if these are not the model's. Leaves
/// out those that the checkpoint lacks and `may_lack` selects. UserError(checkpoint) for an integer dtype.
void add_weights(ParameterSet& parameters, const CheckpointInfo& info, HostTensors& tensors,
                 const std::function<bool(const std::string&)>& may_lack);

/// Loads the weights that inference needs. Collective over `peers`.
void load_weights(ParameterSet& parameters, const SharedManifest& checkpoint, HostGroup& peers);
void load_weights(ParameterSet& parameters, const CheckpointSource& source, HostGroup& peers);
/// What load_weights() reads, as parts without memory.
std::vector<LocalTensor> weight_parts(ParameterSet& parameters);

}  // namespace teratron
