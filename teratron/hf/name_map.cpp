#include "teratron/hf/name_map.h"

#include <fmt/format.h>

namespace teratron {

namespace {

int64_t attention_rows(const HfModel& model) {
  return model.heads * model.kv_channels;
}

int64_t key_rows(const HfModel& model) {
  return model.groups * model.kv_channels;
}

// Rows of linear_qkv, given where q, k and v are: three sources, or one with the three below each other.
std::vector<RowRun> grouped_qkv(const HfModel& model, bool fused) {
  const int64_t width = model.kv_channels;
  const int64_t queries = model.heads / model.groups * width;
  const size_t key_source = fused ? 0 : 1;
  const size_t value_source = fused ? 0 : 2;
  const int64_t key_start = fused ? attention_rows(model) : 0;
  const int64_t value_start = fused ? attention_rows(model) + key_rows(model) : 0;
  std::vector<RowRun> runs;
  for (int64_t group = 0; group < model.groups; ++group) {
    runs.push_back({0, group * queries, queries});
    runs.push_back({key_source, key_start + group * width, width});
    runs.push_back({value_source, value_start + group * width, width});
  }
  return runs;
}

// Builds mappings with the names of one layer (or of the whole model) in front.
class Builder {
 public:
  explicit Builder(std::vector<HfMapping>& mappings) : mappings_(mappings) {}
  void enter(std::string ours, std::string theirs) {
    ours_ = std::move(ours);
    theirs_ = std::move(theirs);
  }

  void same(const std::string& name, const std::string& source, std::vector<int64_t> shape) {
    const int64_t rows = shape[0];
    mappings_.push_back({ours_ + name, shape, {{theirs_ + source, shape, false}}, {{0, 0, rows}}});
  }
  void conv1d(const std::string& name, const std::string& source, int64_t out, int64_t in) {
    mappings_.push_back({ours_ + name, {out, in}, {{theirs_ + source, {in, out}, true}}, {{0, 0, out}}});
  }
  // A weight or bias of several sources; columns = 0: a bias.
  void joined(const std::string& name, const std::vector<std::pair<std::string, int64_t>>& sources,
              int64_t columns, std::vector<RowRun> runs) {
    HfMapping mapping{.name = ours_ + name, .runs = std::move(runs)};
    int64_t total = 0;
    for (const auto& [source, rows] : sources) {
      mapping.sources.push_back({theirs_ + source, shape_of(rows, columns), false});
      total += rows;
    }
    mapping.shape = shape_of(total, columns);
    mappings_.push_back(std::move(mapping));
  }
  HfMapping& last() { return mappings_.back(); }

 private:
  static std::vector<int64_t> shape_of(int64_t rows, int64_t columns) {
    return columns == 0 ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, columns};
  }
  std::vector<HfMapping>& mappings_;
  std::string ours_;
  std::string theirs_;
};

void add_norm(Builder& build, const std::string& name, const std::string& source, int64_t hidden) {
  build.same(name + ".weight", source + ".weight", {hidden});
  build.same(name + ".bias", source + ".bias", {hidden});
}

void add_gpt2_layer(Builder& build, const HfModel& model) {
  const int64_t hidden = model.hidden;
  const std::vector<RowRun> qkv = grouped_qkv(model, true);
  add_norm(build, "input_layernorm", "ln_1", hidden);
  build.conv1d("self_attention.linear_qkv.weight", "attn.c_attn.weight", 3 * hidden, hidden);
  build.last().runs = qkv;
  build.same("self_attention.linear_qkv.bias", "attn.c_attn.bias", {3 * hidden});
  build.last().runs = qkv;
  build.conv1d("self_attention.linear_proj.weight", "attn.c_proj.weight", hidden, hidden);
  build.same("self_attention.linear_proj.bias", "attn.c_proj.bias", {hidden});
  add_norm(build, "pre_mlp_layernorm", "ln_2", hidden);
  build.conv1d("mlp.linear_fc1.weight", "mlp.c_fc.weight", model.ffn, hidden);
  build.same("mlp.linear_fc1.bias", "mlp.c_fc.bias", {model.ffn});
  build.conv1d("mlp.linear_fc2.weight", "mlp.c_proj.weight", hidden, model.ffn);
  build.same("mlp.linear_fc2.bias", "mlp.c_proj.bias", {hidden});
}

void add_llama_attention(Builder& build, const HfModel& model) {
  const int64_t queries = attention_rows(model);
  const int64_t keys = key_rows(model);
  const auto qkv = [&](const std::string& kind, int64_t columns) {
    build.joined("self_attention.linear_qkv." + kind,
                 {{"self_attn.q_proj." + kind, queries},
                  {"self_attn.k_proj." + kind, keys},
                  {"self_attn.v_proj." + kind, keys}},
                 columns, grouped_qkv(model, false));
  };
  qkv("weight", model.hidden);
  if (model.linear_bias || model.qkv_bias) qkv("bias", 0);
  build.same("self_attention.linear_proj.weight", "self_attn.o_proj.weight", {model.hidden, queries});
  if (model.linear_bias)
    build.same("self_attention.linear_proj.bias", "self_attn.o_proj.bias", {model.hidden});
  if (model.family == HfFamily::qwen3) {
    build.same("self_attention.q_layernorm.weight", "self_attn.q_norm.weight", {model.kv_channels});
    build.same("self_attention.k_layernorm.weight", "self_attn.k_norm.weight", {model.kv_channels});
  }
}

void add_llama_layer(Builder& build, const HfModel& model) {
  const auto gate_up = [&](const std::string& kind, int64_t columns) {
    build.joined("mlp.linear_fc1." + kind,
                 {{"mlp.gate_proj." + kind, model.ffn}, {"mlp.up_proj." + kind, model.ffn}}, columns,
                 {{0, 0, model.ffn}, {1, 0, model.ffn}});
  };
  build.same("input_layernorm.weight", "input_layernorm.weight", {model.hidden});
  add_llama_attention(build, model);
  build.same("pre_mlp_layernorm.weight", "post_attention_layernorm.weight", {model.hidden});
  gate_up("weight", model.hidden);
  if (model.linear_bias) gate_up("bias", 0);
  build.same("mlp.linear_fc2.weight", "mlp.down_proj.weight", {model.hidden, model.ffn});
  if (model.linear_bias) build.same("mlp.linear_fc2.bias", "mlp.down_proj.bias", {model.hidden});
}

}  // namespace

std::vector<HfMapping> hf_layout(const HfModel& model, const std::string& prefix) {
  const bool gpt2 = model.family == HfFamily::gpt2;
  std::vector<HfMapping> mappings;
  Builder build(mappings);
  build.enter("", prefix);
  build.same("embedding.word_embeddings.weight", hf_embedding_name(model.family),
             {model.vocabulary, model.hidden});
  if (gpt2) build.same("embedding.position_embeddings.weight", "wpe.weight", {model.positions, model.hidden});
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    build.enter(fmt::format("decoder.layers.{}.", layer),
                fmt::format("{}{}.{}.", prefix, gpt2 ? "h" : "layers", layer));
    if (gpt2) {
      add_gpt2_layer(build, model);
    } else {
      add_llama_layer(build, model);
    }
  }
  build.enter("", prefix);
  if (gpt2) {
    add_norm(build, "decoder.final_layernorm", "ln_f", model.hidden);
  } else {
    build.same("decoder.final_layernorm.weight", "norm.weight", {model.hidden});
  }
  build.enter("", "");
  if (!model.tied) build.same("output_layer.weight", "lm_head.weight", {model.vocabulary, model.hidden});
  return mappings;
}

std::string hf_prefix(HfFamily family) {
  return family == HfFamily::gpt2 ? "transformer." : "model.";
}

std::string hf_embedding_name(HfFamily family) {
  return family == HfFamily::gpt2 ? "wte.weight" : "embed_tokens.weight";
}

bool is_hf_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace teratron
