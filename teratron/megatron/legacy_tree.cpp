#include "teratron/megatron/legacy_tree.h"

#include <array>
#include <cstdlib>
#include <string_view>

#include "teratron/base/error.h"

namespace teratron {

namespace {

struct Module {
  std::string_view legacy;
  std::string_view ours;
  bool linear = false;  // a parallel linear layer, which has an "_extra_state" in Megatron-Core
};

constexpr std::array<Module, 5> encoder_layer = {{
    {"input_norm", "input_layernorm"},
    {"self_attention.query_key_value", "self_attention.linear_qkv", true},
    {"self_attention.dense", "self_attention.linear_proj", true},
    {"post_attention_norm", "pre_mlp_layernorm"},
    {"mlp", "mlp"},
}};

constexpr std::array<Module, 9> decoder_layer = {{
    {"input_norm", "input_layernorm"},
    {"self_attention.query_key_value", "self_attention.linear_qkv", true},
    {"self_attention.dense", "self_attention.linear_proj", true},
    {"post_attention_norm", "pre_cross_attn_layernorm"},
    {"inter_attention.query", "cross_attention.linear_q", true},
    {"inter_attention.key_value", "cross_attention.linear_kv", true},
    {"inter_attention.dense", "cross_attention.linear_proj", true},
    {"post_inter_attention_norm", "pre_mlp_layernorm"},
    {"mlp", "mlp"},
}};

// Collects the entries of one rank.
class EntryList {
 public:
  explicit EntryList(const LegacyModel& model) : model_(model) {}

  /// Weight and bias, as far as the model has them, in `path`.
  void add(const std::vector<std::string>& path, const Module& module, const std::string& prefix = "") {
    const std::string ours = prefix + std::string(module.ours);
    std::string legacy(module.legacy);
    if (model_.names == MegatronNames::legacy_v2) legacy = in_v2(legacy);
    bool any = false;
    for (const char* part : {"weight", "bias"}) {
      const std::string name = ours + "." + part;
      if (!model_.tensors->contains(name)) continue;
      entries_.push_back({path, legacy.empty() ? part : legacy + "." + part, name});
      any = true;
    }
    if (any && module.linear && model_.names == MegatronNames::legacy_core)
      entries_.push_back({path, legacy.empty() ? "_extra_state" : legacy + "._extra_state", ""});
  }

  void add_one(const std::vector<std::string>& path, const std::string& key, const std::string& name) {
    if (model_.tensors->contains(name)) entries_.push_back({path, key, name});
  }

  void add_none(const std::vector<std::string>& path, const std::string& key) {
    entries_.push_back({path, key, ""});
  }

  void add_layer(const std::string& stack, int64_t number, const std::string& prefix) {
    const auto add_all = [&](const auto& modules) {
      for (const Module& module : modules) {
        for (const Module& part : parts_of(module)) {
          const std::string legacy = numbered(number, part.legacy);
          add({"language_model", stack}, {legacy, part.ours, part.linear}, prefix);
        }
      }
    };
    stack == "decoder" ? add_all(decoder_layer) : add_all(encoder_layer);
  }

  std::vector<MegatronEntry> take() { return std::move(entries_); }

 private:
  static std::vector<Module> parts_of(const Module& module) {
    if (module.legacy != "mlp") return {module};
    return {{"mlp.dense_h_to_4h", "mlp.linear_fc1", true}, {"mlp.dense_4h_to_h", "mlp.linear_fc2", true}};
  }
  static std::string numbered(int64_t number, std::string_view rest) {
    return fmt::format("layers.{}.{}", number, rest);
  }
  static std::string in_v2(std::string name) {
    if (name == "norm") return "layernorm";
    if (name.ends_with("_norm")) name.replace(name.size() - 4, 4, "layernorm");
    return name;
  }

  const LegacyModel& model_;
  std::vector<MegatronEntry> entries_;
};

int64_t count_layers(const std::map<std::string, TensorInfo>& tensors, const std::string& stack) {
  int64_t count = 0;
  while (tensors.contains(fmt::format("{}.layers.{}.self_attention.linear_qkv.weight", stack, count)))
    ++count;
  return count;
}

// Layers [begin, end) of a stack, and whether the final norm follows.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

void add_stack(EntryList& list, const std::string& legacy, const std::string& ours, Span layers, bool last) {
  for (int64_t i = layers.begin; i < layers.end; ++i)
    list.add_layer(legacy, i - layers.begin, fmt::format("{}.layers.{}.", ours, i));
  if (last) list.add({"language_model", legacy}, {"final_norm", "final_layernorm"}, ours + ".");
}

void add_embedding(EntryList& list) {
  for (const std::string name : {"word_embeddings", "position_embeddings", "tokentype_embeddings"})
    list.add({"language_model", "embedding", name}, {"", name}, "embedding.");
}

void add_output_layer(EntryList& list, MegatronNames names) {
  list.add_one({"language_model", "output_layer"}, "weight", "output_layer.weight");
  if (names == MegatronNames::legacy_core) list.add_none({"language_model", "output_layer"}, "_extra_state");
}

Span share(int64_t layers, int64_t stage, int64_t stages) {
  const int64_t each = layers / stages;
  return {stage * each, (stage + 1) * each};
}

[[noreturn]] void refuse(const std::string& what, const std::string& fix) {
  throw config_error({.what = what, .where = "--target-pipeline-parallel-size", .fix = fix});
}

}  // namespace

MegatronStages megatron_stages(MegatronFamily family, const std::map<std::string, TensorInfo>& tensors,
                               int64_t stages) {
  MegatronStages result{.stages = stages};
  if (family != MegatronFamily::t5) {
    result.encoder_layers = count_layers(tensors, family == MegatronFamily::gpt ? "decoder" : "encoder");
    if (result.encoder_layers % stages != 0)
      refuse(fmt::format("{} layers are not divisible by {} stages", result.encoder_layers, stages),
             "Each stage has the same number of layers: use a divisor");
    return result;
  }
  result.encoder_layers = count_layers(tensors, "encoder");
  result.decoder_layers = count_layers(tensors, "decoder");
  // Of the possible splits the one with the most equal stages.
  int64_t best = INT64_MAX;
  for (int64_t split = 1; split < stages; ++split) {
    if (result.encoder_layers % split != 0 || result.decoder_layers % (stages - split) != 0) continue;
    const int64_t difference =
        std::abs(result.encoder_layers / split - result.decoder_layers / (stages - split));
    if (difference < best) best = difference, result.split = split;
  }
  if (stages > 1 && result.split == 0)
    refuse(
        fmt::format("{} encoder layers and {} decoder layers cannot be divided among {} stages",
                    result.encoder_layers, result.decoder_layers, stages),
        "Megatron-LM gives some stages the encoder, the others the decoder, each the same number of layers");
  return result;
}

std::vector<MegatronEntry> legacy_entries(const LegacyModel& model, int64_t stage) {
  const MegatronStages& stages = model.stages;
  const bool t5 = model.family == MegatronFamily::t5;
  const bool first = stage == 0, last = stage == stages.stages - 1;
  const bool untied = model.tensors->contains("output_layer.weight");
  const std::string stack = model.family == MegatronFamily::gpt ? "decoder" : "encoder";
  const bool with_embedding = first || (t5 && stage == stages.split);
  EntryList list(model);
  if (with_embedding) add_embedding(list);
  const int64_t encoders = t5 && stages.stages > 1 ? stages.split : stages.stages;
  if (stage < encoders)
    add_stack(list, "encoder", stack, share(stages.encoder_layers, stage, encoders), stage == encoders - 1);
  if (last && model.family == MegatronFamily::bert)
    list.add({"language_model", "pooler"}, {"dense", "pooler.dense"});
  if (last && untied) add_output_layer(list, model.names);
  if (t5 && stage >= stages.split) {
    const int64_t decoders = stages.stages - stages.split;
    add_stack(list, "decoder", "decoder", share(stages.decoder_layers, stage - stages.split, decoders), last);
  }
  if (!last) return list.take();
  list.add_one({"lm_head"}, "bias", "output_layer.bias");
  if (model.family == MegatronFamily::bert) {
    list.add({"lm_head"}, {"dense", "lm_head.dense"});
    list.add({"lm_head"}, {"norm", "lm_head.layer_norm"});
    list.add({"binary_head"}, {"", "binary_head"});
  }
  if (!with_embedding && !untied) list.add({"word_embeddings_for_head"}, {"", "embedding.word_embeddings"});
  return list.take();
}

}  // namespace teratron
