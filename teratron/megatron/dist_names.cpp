#include "teratron/megatron/dist_names.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/megatron/names.h"
#include "teratron/optim/rules/adam_states.h"

namespace teratron {

std::optional<LayerKey> layer_key(const std::string& key) {
  const size_t at = key.find(".layers.");
  if (at == std::string::npos) return std::nullopt;
  LayerKey result{.stack = key.substr(0, at + 8), .rest = key.substr(at + 8)};
  const size_t digits = std::min(result.rest.find_first_not_of("0123456789"), result.rest.size());
  if (digits == 0) return result;
  if (digits > 6 || digits >= result.rest.size() || result.rest[digits] != '.') return std::nullopt;
  result.number = std::stoll(result.rest.substr(0, digits));
  result.rest = result.rest.substr(digits + 1);
  result.within = mtp_layer_of(result.rest);
  result.rest.erase(0, result.within.size());
  return result;
}

std::string name_of_expert(std::string_view rest, int64_t expert) {
  return fmt::format("mlp.experts.{}.{}", expert, rest.substr(experts_of_layer.size()));
}

std::vector<std::pair<std::string, std::string>> dist_state_kinds() {
  std::vector<std::pair<std::string, std::string>> kinds;
  for (const auto& [name, type] : adam_states)
    kinds.emplace_back(fmt::format("optimizer.state.{}.", name), std::string(name));
  kinds.emplace_back("optimizer.state.fp32_param.", "param");
  return kinds;
}

}  // namespace teratron
