// Checks of --cuda-graph-impl.
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

void check_alone(Validation& v, std::string_view size_name, int64_t size) {
  if (size == 1) return;
  v.reject("cuda_graph_impl",
           fmt::format("cuda_graph_impl = local captures what one GPU does by itself, but {} = {}", size_name,
                       size),
           fmt::format("Leave it out, or use data parallelism alone ({} 1)", flag_of(size_name)));
}

}  // namespace

void check_graphs(Validation& v) {
  const Arguments& a = v.args;
  if (a.cuda_graph_impl != "local") {
    if (v.chosen("cuda_graph_warmup_steps"))
      v.note("--cuda-graph-warmup-steps has no effect without --cuda-graph-impl local");
    return;
  }
  if (a.device == "cpu") {
    v.reject("cuda_graph_impl", "cuda_graph_impl = local captures what a GPU does, but device = cpu",
             "Leave it out, or train on a GPU");
  }
  check_alone(v, "tensor_model_parallel_size", a.tensor_model_parallel_size);
  check_alone(v, "pipeline_model_parallel_size", a.pipeline_model_parallel_size);
  if (a.timing_log_level >= 2) {
    v.note(
        "--timing-log-level 2: forward-compute says nothing of micro-batches that are replayed (CUDA "
        "graphs)");
  }
  for (const std::string_view name : {"overlap_grad_reduce", "overlap_param_gather"}) {
    if (v.chosen(name) && a.data_parallel_size != 1)
      v.note(fmt::format("{} has no effect once micro-batches are replayed (CUDA graphs)", flag_of(name)));
  }
}

}  // namespace teratron
