// Which ranks of a job compute a model together outside training.
//
// All ranks of a stage have the same tokens. Dense layers are divided over tensor-parallel ranks, experts
// over expert-parallel and expert tensor-parallel ones; where these are more, several tensor-parallel groups
// compute the same dense layers.
#pragma once

#include "teratron/comm/mesh/mesh.h"

namespace teratron {

struct ModelRanks {
  /// One of the groups of `mesh`, tensor-parallel ranks or those of experts, must contain the other.
  explicit ModelRanks(const Mesh& mesh);

  Group all;       // of this rank's replica of the model
  Group replicas;  // this rank's counterparts in all replicas
  Group copies;    // of a stage, if several tensor-parallel groups compute its dense layers; else one rank
};

}  // namespace teratron
