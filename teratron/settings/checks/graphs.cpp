#include "teratron/settings/checks/graphs.h"

#include <algorithm>

namespace teratron {

namespace {

bool has_type(const Arguments& a, std::string_view type) {
  const std::vector<std::string>& types = a.moe_router_load_balancing_type;
  return std::find(types.begin(), types.end(), type) != types.end();
}

// A coefficient of zero leaves the loss out.
bool has_loss(const Arguments& a, std::string_view type) {
  const std::vector<std::string>& types = a.moe_router_load_balancing_type;
  for (size_t i = 0; i < std::min(types.size(), a.moe_aux_loss_coeff.size()); ++i) {
    if (types[i] == type && a.moe_aux_loss_coeff[i] > 0.0) return true;
  }
  return false;
}

}  // namespace

std::vector<GraphObstacle> expert_graph_obstacles(const Arguments& args) {
  if (!args.num_experts) return {};
  std::vector<GraphObstacle> obstacles;
  const auto add = [&](std::string_view setting, std::string reason, const char* fix) {
    obstacles.push_back({setting, std::move(reason), fix});
  };
  constexpr const char* leave_out = "Leave --cuda-graph-impl out";
  const int64_t etp = args.expert_tensor_parallel_size.value_or(args.tensor_model_parallel_size);
  if (args.expert_model_parallel_size > 1)
    add("expert_model_parallel_size", "communication between the ranks of the experts is not captured",
        leave_out);
  if (etp > 1)
    add("expert_tensor_parallel_size", "communication between the ranks of an expert is not captured",
        leave_out);
  if (has_loss(args, "global_aux_loss") && args.data_parallel_size.value_or(1) > 1)
    add("moe_router_load_balancing_type",
        "global_aux_loss counts the tokens of all data-parallel ranks, and communication is not captured",
        "Use aux_loss or seq_aux_loss, or leave --cuda-graph-impl out");
  if (has_type(args, "sinkhorn"))
    add("moe_router_load_balancing_type", "sinkhorn waits for the device, which is not captured",
        "Use another type, or leave --cuda-graph-impl out");
  if (!args.bf16)
    add("cuda_graph_impl", "GEMMs of experts in fp32 and fp16 wait for the device, which is not captured",
        "Add --bf16, or leave --cuda-graph-impl out");
  return obstacles;
}

}  // namespace teratron
