#include "teratron/megatron/names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

namespace teratron {

namespace {

using Pair = std::pair<std::string_view, std::string_view>;

// Beginnings of names outside of layers.
constexpr std::array<Pair, 7> heads = {{
    {"word_embeddings.", "embedding.word_embeddings."},
    {"position_embeddings.", "embedding.position_embeddings."},
    {"tokentype_embeddings.", "embedding.tokentype_embeddings."},
    {"lm_head.layernorm.", "lm_head.layer_norm."},
    {"lm_head.norm.", "lm_head.layer_norm."},
    {"lm_head.bias", "output_layer.bias"},
    {"lm_head.output_layer.bias", "output_layer.bias"},
}};

// Beginnings of names within a layer; those of Transformer Engine's fused modules before their prefixes.
constexpr std::array<Pair, 27> modules = {{
    {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
    {"self_attention.layernorm_qkv.layer_norm_", "input_layernorm."},
    {"self_attention.layernorm_qkv.", "self_attention.linear_qkv."},
    {"self_attention.query_key_value.", "self_attention.linear_qkv."},
    {"self_attention.dense.", "self_attention.linear_proj."},
    {"self_attention.proj.", "self_attention.linear_proj."},
    {"attention.query_key_value.", "self_attention.linear_qkv."},
    {"attention.dense.", "self_attention.linear_proj."},
    {"inter_attention.query.", "cross_attention.linear_q."},
    {"inter_attention.key_value.", "cross_attention.linear_kv."},
    {"inter_attention.dense.", "cross_attention.linear_proj."},
    {"input_norm.", "input_layernorm."},
    {"post_inter_attention_layernorm.", "pre_mlp_layernorm."},
    {"post_inter_attention_norm.", "pre_mlp_layernorm."},
    {"post_attention_layernorm.", "pre_mlp_layernorm."},
    {"post_attention_norm.", "pre_mlp_layernorm."},
    {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."},
    {"mlp.dense_h_to_4h.", "mlp.linear_fc1."},
    {"mlp.dense_4h_to_h.", "mlp.linear_fc2."},
    {"layernorm_mlp.layer_norm_", "pre_mlp_layernorm."},
    {"layernorm_mlp.fc1_", "mlp.linear_fc1."},
    {"layernorm_mlp.fc2_", "mlp.linear_fc2."},
    {"self_attention.q_norm.", "self_attention.q_layernorm."},
    {"self_attention.k_norm.", "self_attention.k_layernorm."},
    {"self_attention.q_layernorm.", "self_attention.q_layernorm."},
    {"self_attention.k_layernorm.", "self_attention.k_layernorm."},
    {"cross_attention.linear_q.layer_norm_", "pre_cross_attn_layernorm."},
}};

template <size_t size>
std::string renamed(std::string_view name, const std::array<Pair, size>& table) {
  for (const auto& [old, now] : table) {
    if (name.starts_with(old)) return std::string(now) + std::string(name.substr(old.size()));
  }
  return std::string(name);
}

// The name without the stack's beginning; empty `stack` if it is not in one.
std::string_view strip_stack(std::string_view path, MegatronFamily family, std::string& stack) {
  for (const std::string_view old : {"transformer.", "encoder.", "decoder."}) {
    if (!path.starts_with(old)) continue;
    stack = family == MegatronFamily::gpt                       ? "decoder."
            : family == MegatronFamily::t5 && old == "decoder." ? "decoder."
                                                                : "encoder.";
    return path.substr(old.size());
  }
  return path;
}

constexpr std::string_view experts = "mlp.experts.", sequential = "local_experts.";

// "mlp.experts.3.linear_fc1.weight"; other names as they are.
std::string with_expert_first(const std::string& name) {
  const auto expert = expert_number(name);
  if (!expert || !name.starts_with(experts)) return name;
  const std::string number = name.substr(expert->at, expert->length);
  std::string module = name.substr(experts.size());
  if (module.starts_with(sequential)) {
    module.erase(0, sequential.size() + expert->length + 1);
  } else {
    module.erase(module.size() - expert->length);
  }
  return fmt::format("{}{}.{}", experts, number, module);
}

}  // namespace

std::optional<ExpertNumber> expert_number(std::string_view path) {
  const size_t found = path.find(experts);
  if (found == path.npos) return std::nullopt;
  const size_t module = found + experts.size();
  size_t begin = module, end = path.size();
  if (path.substr(module).starts_with(sequential)) {
    begin += sequential.size();
    end = std::min(path.find('.', begin), path.size());
  } else {
    begin = path.find_last_not_of("0123456789") + 1;
    const std::string_view part = path.substr(module, begin - module);
    if (part != "linear_fc1.weight" && part != "linear_fc2.weight" && part != "linear_fc1.bias" &&
        part != "linear_fc2.bias")
      return std::nullopt;
  }
  ExpertNumber result{.at = begin, .length = end - begin};
  const auto [last, error] = std::from_chars(path.data() + begin, path.data() + end, result.number);
  if (begin >= end || error != std::errc() || last != path.data() + end || result.number > 1 << 20)
    return std::nullopt;
  return result;
}

MegatronName megatron_name(std::string_view path, MegatronFamily family) {
  if (path.starts_with("language_model.")) path.remove_prefix(15);
  std::string stack;
  std::string_view name = strip_stack(path, family, stack);
  if (stack.empty()) return {.name = renamed(name, heads)};
  if (name.starts_with("final_norm."))
    return {.name = stack + "final_layernorm." + std::string(name.substr(11))};
  if (!name.starts_with("layers.")) return {.name = stack + std::string(name)};
  name.remove_prefix(7);
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto length = static_cast<size_t>(end - name.data());
  if (error != std::errc() || length >= name.size() || layer < 0 || layer > 1 << 20)
    return {.name = stack + "layers." + std::string(name)};
  name.remove_prefix(length + 1);
  std::string rest = with_expert_first(renamed(name, modules));
  // T5's decoder attends to the encoder between its own attention and the MLP.
  if (family == MegatronFamily::t5 && stack == "decoder." && name.starts_with("post_attention_"))
    rest = "pre_cross_attn_layernorm." + std::string(name.substr(name.rfind('.') + 1));
  MegatronName result{.name = {}, .stack = stack + "layers.", .layer = layer, .rest = rest};
  result.name = result.in_layer(layer);
  return result;
}

MegatronSplit split_of(std::string_view name) {
  for (const std::string_view rows :
       {"word_embeddings.weight", "output_layer.weight", "output_layer.bias", "linear_qkv.weight",
        "linear_qkv.bias", "linear_q.weight", "linear_q.bias", "linear_kv.weight", "linear_kv.bias",
        "linear_fc1.weight", "linear_fc1.bias"}) {
    if (name.ends_with(rows)) return MegatronSplit::rows;
  }
  for (const std::string_view columns :
       {"linear_proj.weight", "linear_fc2.weight", "relative_attention_bias.weight"}) {
    if (name.ends_with(columns)) return MegatronSplit::columns;
  }
  return MegatronSplit::none;
}

}  // namespace teratron
