// Mixture of experts: which layers have them, and the balance of their loads.
#include <algorithm>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/settings/checks/graphs.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

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

void check_balancing(Validation& v) {
  Arguments& a = v.args;
  constexpr std::string_view name = "moe_router_load_balancing_type";
  const std::vector<std::string>& types = a.moe_router_load_balancing_type;
  for (size_t i = 0; i < types.size(); ++i) {
    if ((types[i] == "none" || types[i] == "sinkhorn") && types.size() > 1)
      v.reject(name, fmt::format("'{}' is not combined with other types", types[i]), "Give it alone");
    if (std::find(types.begin() + static_cast<long>(i) + 1, types.end(), types[i]) != types.end())
      v.reject(name, fmt::format("'{}' is given twice", types[i]), "Give each type once");
  }
  std::vector<double>& coefficients = a.moe_aux_loss_coeff;
  if (coefficients.size() == types.size()) return;
  if (!v.chosen("moe_aux_loss_coeff") && coefficients == std::vector<double>(coefficients.size(), 0.0)) {
    v.derive("moe_aux_loss_coeff", coefficients, std::vector<double>(types.size(), 0.0));
  } else {
    v.reject("moe_aux_loss_coeff",
             fmt::format("{} coefficients for {} types of load balancing", coefficients.size(), types.size()),
             "Give one for each of --moe-router-load-balancing-type");
  }
}

void check_expert_graphs(Validation& v) {
  if (v.args.cuda_graph_impl != "local") return;
  for (const GraphObstacle& obstacle : expert_graph_obstacles(v.args))
    v.reject(obstacle.setting, fmt::format("--cuda-graph-impl local: {}", obstacle.reason), obstacle.fix);
}

}  // namespace

void check_experts(Validation& v) {
  if (!v.args.num_experts) return;
  Arguments& a = v.args;
  if (!a.moe_ffn_hidden_size && a.ffn_hidden_size)
    v.derive("moe_ffn_hidden_size", a.moe_ffn_hidden_size, *a.ffn_hidden_size);
  check_expert_layers(v);
  check_balancing(v);
  check_expert_graphs(v);
}

}  // namespace teratron
