#include "teratron/settings/mesh_settings.h"

namespace teratron {

MeshOptions mesh_options(const Arguments& args) {
  return {.tp = args.tensor_model_parallel_size,
          .pp = args.pipeline_model_parallel_size,
          .cp = args.context_parallel_size,
          .ep = args.expert_model_parallel_size,
          .etp = args.expert_tensor_parallel_size.value_or(0),
          .order = args.use_tp_pp_dp_mapping ? "tp-cp-ep-pp-dp" : MeshOptions().order};
}

}  // namespace teratron
