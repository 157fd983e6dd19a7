#include "teratron/megatron/rows/row_segments.h"

namespace teratron {

using nlohmann::json;

namespace {

bool is_of(std::string_view name, std::string_view module) {
  return name.find(module) != name.npos;
}

int64_t size(const json& settings, const char* name) {
  const json value = settings.value(name, json());
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

}  // namespace

std::vector<int64_t> row_segments(std::string_view name, int64_t rows, const json& settings) {
  if (is_of(name, "linear_fc1.") && settings.value("swiglu", json()) == true) return {rows / 2, rows / 2};
  const bool convolution = is_of(name, ".conv1d.");
  if (is_of(name, ".mixer.in_proj.") || (is_of(name, ".mixer.") && convolution)) {
    const int64_t heads = size(settings, "mamba_num_heads"), d = heads * size(settings, "mamba_head_dim");
    const int64_t gn = size(settings, "mamba_num_groups") * size(settings, "mamba_state_dim");
    if (convolution) return {d, gn, gn};
    return {d, d, gn, gn, heads};
  }
  if (is_of(name, ".self_attention.in_proj.") || (is_of(name, ".self_attention.") && convolution)) {
    const int64_t keys = size(settings, "linear_num_key_heads") * size(settings, "linear_key_head_dim");
    const int64_t heads = size(settings, "linear_num_value_heads");
    const int64_t values = heads * size(settings, "linear_value_head_dim");
    if (convolution) return {keys, keys, values};
    return {keys, keys, values, values, heads, heads};
  }
  return {};
}

std::vector<std::string_view> segment_names(std::string_view name) {
  if (name.ends_with("mixer.in_proj.weight")) return {"z", "x", "B", "C", "dt"};
  if (name.ends_with("mixer.conv1d.weight") || name.ends_with("mixer.conv1d.bias")) return {"x", "B", "C"};
  if (name.ends_with("self_attention.in_proj.weight")) return {"query", "key", "value", "z", "beta", "alpha"};
  if (name.ends_with("self_attention.conv1d.weight")) return {"query", "key", "value"};
  return {};
}

}  // namespace teratron
