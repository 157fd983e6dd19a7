#include "teratron/generate/model_ranks.h"

namespace teratron {

ModelRanks::ModelRanks(const Mesh& mesh) {
  const Group& experts = mesh.group({Axis::etp, Axis::ep});
  const bool wide = experts.size > mesh.group(Axis::tp).size;
  all = mesh.group(wide ? AxisSet{Axis::etp, Axis::ep, Axis::pp} : AxisSet{Axis::tp, Axis::pp});
  replicas = wide ? mesh.group(Axis::edp) : mesh.data_parallel();
  if (wide) copies = experts;
}

}  // namespace teratron
