// Mixture of experts: sizes, routing rules and what they exclude.
#include <algorithm>
#include <cmath>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/settings/checks/graphs.h"
#include "teratron/settings/checks/validate.h"

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

void check_expert_layers(Validation& v) {
  const Arguments& a = v.args;
  if (!a.num_layers) return;
  const auto layers = parse_layer_pattern(a.moe_layer_freq, *a.num_layers);
  if (!layers) {
    v.reject(
        "moe_layer_freq",
        fmt::format("moe_layer_freq = '{}' is neither a number above 0 nor a list of num_layers = {} zeros "
                    "and ones",
                    printable(a.moe_layer_freq), *a.num_layers),
        "Give N for experts in every N-th layer, or a list such as [0,1,1] or ([0]*1+[1]*26)");
  } else if (std::find(layers->begin(), layers->end(), 1) == layers->end()) {
    v.reject("moe_layer_freq",
             fmt::format("moe_layer_freq = '{}' gives no layer experts", printable(a.moe_layer_freq)),
             "Set a layer to 1, or leave --num-experts out");
  }
}

// Sizes that setting_relations.cpp refuses are left out.
void check_group_sizes(Validation& v) {
  const Arguments& a = v.args;
  if (!a.moe_router_num_groups || !a.moe_router_group_topk) return;
  const int64_t groups = *a.moe_router_num_groups, chosen = *a.moe_router_group_topk;
  const int64_t experts = *a.num_experts, topk = a.moe_router_topk;
  if (chosen > groups || experts % groups != 0 || topk % chosen != 0) return;
  const int64_t available = chosen * (experts / groups);
  if (topk <= available) return;
  v.reject("moe_router_topk",
           fmt::format("moe_router_topk = {} experts, but {} groups of {} experts have {}", topk, chosen,
                       experts / groups, available),
           fmt::format("Use at most {}", available));
}

void check_softmax(Validation& v) {
  const Arguments& a = v.args;
  const bool softmax = a.moe_router_score_function == "softmax";
  if (softmax && a.moe_router_topk == 1 && !a.moe_router_pre_softmax && !has_type(a, "sinkhorn")) {
    v.reject("moe_router_topk", "the softmax over one chosen expert is always 1, without a gradient",
             "Add --moe-router-pre-softmax, or choose more experts");
  }
}

void check_balancing(Validation& v) {
  Arguments& a = v.args;
  const std::vector<std::string>& types = a.moe_router_load_balancing_type;
  const bool coefficients = std::any_of(a.moe_aux_loss_coeff.begin(), a.moe_aux_loss_coeff.end(),
                                        [](double c) { return c != 0.0; });
  for (const char* alone : {"none", "sinkhorn"}) {
    if (!has_type(a, alone)) continue;
    if (types.size() > 1)
      v.reject("moe_router_load_balancing_type", fmt::format("'{}' is not combined with other types", alone),
               "Give it alone");
    if (coefficients)
      v.reject("moe_aux_loss_coeff", fmt::format("moe_router_load_balancing_type = {} has no loss", alone),
               "Leave --moe-aux-loss-coeff out");
  }
  if (has_type(a, "sinkhorn") && (a.moe_router_score_function != "softmax" || a.moe_router_num_groups ||
                                  a.moe_router_pre_softmax || a.moe_router_topk_scaling_factor)) {
    v.reject("moe_router_load_balancing_type",
             "sinkhorn chooses experts by itself, without scores, groups and a scaling factor",
             "Leave --moe-router-score-function, --moe-router-pre-softmax, --moe-router-num-groups and "
             "--moe-router-topk-scaling-factor out");
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (std::find(types.begin(), types.begin() + static_cast<long>(i), types[i]) ==
        types.begin() + static_cast<long>(i))
      continue;
    v.reject("moe_router_load_balancing_type", fmt::format("'{}' is given twice", types[i]),
             "Give each type once");
  }
  if (a.moe_aux_loss_coeff.size() == types.size()) return;
  if (!coefficients && !v.chosen("moe_aux_loss_coeff")) {
    v.derive("moe_aux_loss_coeff", a.moe_aux_loss_coeff, std::vector<double>(types.size(), 0.0));
  } else {
    v.reject("moe_aux_loss_coeff",
             fmt::format("{} coefficients for {} types of load balancing", a.moe_aux_loss_coeff.size(),
                         types.size()),
             "Give one for each of --moe-router-load-balancing-type");
  }
}

void check_capacity(Validation& v) {
  const Arguments& a = v.args;
  if (a.moe_expert_capacity_factor && *a.moe_expert_capacity_factor == 0.0) {
    v.reject("moe_expert_capacity_factor", "a capacity of 0 drops every token",
             "Use a factor above 0, or a negative one to drop none");
  }
  if (a.moe_pad_expert_input_to_capacity && a.moe_expert_capacity_factor.value_or(-1.0) < 0.0) {
    v.reject("moe_pad_expert_input_to_capacity", "there is no capacity to pad to",
             "Add --moe-expert-capacity-factor");
  }
}

void check_expert_widths(Validation& v) {
  Arguments& a = v.args;
  if (!a.moe_ffn_hidden_size && a.ffn_hidden_size)
    v.derive("moe_ffn_hidden_size", a.moe_ffn_hidden_size, *a.ffn_hidden_size);
  const int64_t tp = a.tensor_model_parallel_size, etp = a.expert_tensor_parallel_size.value_or(tp);
  if (a.moe_ffn_hidden_size) {
    v.divisible({"moe_ffn_hidden_size", *a.moe_ffn_hidden_size, "expert_tensor_parallel_size", etp,
                 "Experts are split over the ranks of their tensor-parallel group"});
  }
  if (tp > 1 && !a.sequence_parallel && etp != tp) {
    v.reject("expert_tensor_parallel_size",
             fmt::format("without sequence_parallel, tensor-parallel ranks have the same tokens: "
                         "expert_tensor_parallel_size = {} must be tensor_model_parallel_size = {}",
                         etp, tp),
             "Add --sequence-parallel");
  }
}

void check_expert_graphs(Validation& v) {
  if (v.args.cuda_graph_impl != "local") return;
  for (const GraphObstacle& obstacle : expert_graph_obstacles(v.args))
    v.reject(obstacle.setting, fmt::format("--cuda-graph-impl local: {}", obstacle.reason), obstacle.fix);
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

void check_experts(Validation& v) {
  if (!v.args.num_experts) return;
  check_expert_layers(v);
  check_group_sizes(v);
  check_softmax(v);
  check_balancing(v);
  check_capacity(v);
  check_expert_widths(v);
  check_expert_graphs(v);
}

}  // namespace teratron
