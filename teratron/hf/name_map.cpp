#include "teratron/hf/name_map.h"

#include <numeric>

#include <fmt/format.h>

namespace teratron {

using nlohmann::json;

namespace {

// A product of settings: "a" or "a*b".
int64_t size_in(const json& settings, std::string_view product) {
  const size_t star = product.find('*');
  const int64_t size = settings.at(product.substr(0, star));
  return star == product.npos ? size : size * size_in(settings, product.substr(star + 1));
}

int64_t query_groups(const json& settings) {
  return settings.at(settings.at("group_query_attention") ? "num_query_groups" : "num_attention_heads");
}

// Rows of the parts of a module's tensors: of the sources, or of what a fused source concatenates.
std::vector<int64_t> part_rows(const HfModule& module, const json& settings) {
  if (module.rows != "qkv") return std::vector(module.sources.size(), size_in(settings, module.rows));
  const int64_t keys = query_groups(settings) * size_in(settings, "kv_channels");
  return {size_in(settings, "num_attention_heads*kv_channels"), keys, keys};
}

// The rows of each part in so many groups, group by group.
std::vector<RowSlice> slices_of(const std::vector<int64_t>& parts, int64_t groups, bool fused) {
  std::vector<RowSlice> slices;
  for (int64_t group = 0; group < groups; ++group) {
    int64_t start = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t rows = parts[i] / groups;
      slices.push_back({fused ? 0 : i, start + group * rows, rows});
      if (fused) start += parts[i];
    }
  }
  return slices;
}

// A module's weight or bias, without prefixes.
HfTensor tensor_of(const HfModule& module, const json& settings, const char* kind) {
  const bool matrix = !module.columns.empty() && kind == std::string_view("weight");
  const std::vector<int64_t> parts = part_rows(module, settings);
  const bool fused = parts.size() > module.sources.size();
  const auto shape = [&](int64_t rows) {
    return matrix ? std::vector{rows, size_in(settings, module.columns)} : std::vector{rows};
  };
  const int64_t rows = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  HfTensor tensor{.name = fmt::format("{}.{}", module.name, kind), .shape = shape(rows)};
  for (size_t i = 0; i < module.sources.size(); ++i) {
    HfSource& source =
        tensor.sources.emplace_back(fmt::format("{}.{}", module.sources[i], kind),
                                    shape(fused ? rows : parts[i]), matrix && module.transposed);
    if (source.transposed) std::swap(source.shape[0], source.shape[1]);
  }
  tensor.slices = slices_of(parts, module.rows == "qkv" ? query_groups(settings) : 1, fused);
  return tensor;
}

// The prefixes precede the module's name here and there.
struct Prefixes {
  std::string ours;
  std::string theirs;
};

void add_module(const HfModule& module, const json& settings, const Prefixes& prefixes,
                std::vector<HfTensor>& tensors) {
  if (!module.when.empty() && !settings.value(module.when, false)) return;
  const bool bias = settings.at("add_bias_linear") || (module.rows == "qkv" && settings.at("add_qkv_bias"));
  for (const char* kind : {"weight", "bias"}) {
    if (kind == std::string_view("bias") && !(module.bias && bias)) continue;
    HfTensor& tensor = tensors.emplace_back(tensor_of(module, settings, kind));
    tensor.name = prefixes.ours + tensor.name;
    for (HfSource& source : tensor.sources) source.name = prefixes.theirs + source.name;
  }
}

}  // namespace

std::vector<HfTensor> hf_name_map(const HfModel& model, std::string_view prefix) {
  const HfFamily& family = *model.family;
  std::vector<HfTensor> tensors;
  const auto add = [&](const HfModule& module, const Prefixes& prefixes) {
    add_module(module, model.settings, prefixes, tensors);
  };
  for (const HfModule& module : family.embeddings) add(module, {"", std::string(prefix)});
  for (int64_t layer = 0; layer < size_in(model.settings, "num_layers"); ++layer) {
    const Prefixes prefixes{fmt::format("decoder.layers.{}.", layer),
                            fmt::format("{}{}.{}.", prefix, family.layers, layer)};
    for (const HfModule& module : family.layer) add(module, prefixes);
  }
  add(family.final_norm, {"", std::string(prefix)});
  if (!model.tied()) add({"output_layer", {"lm_head"}, "vocab_size", "hidden_size"}, {});
  return tensors;
}

bool is_hf_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace teratron
