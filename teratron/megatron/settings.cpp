#include "teratron/megatron/settings.h"

#include <algorithm>

#include "teratron/base/error.h"

namespace teratron {

using nlohmann::json;

namespace {

using Kind = PickleValue::Kind;

// Taken over under the same name.
constexpr const char* taken_over[] = {"num_attention_heads",
                                      "kv_channels",
                                      "seq_length",
                                      "max_position_embeddings",
                                      "position_embedding_type",
                                      "relative_attention_num_buckets",
                                      "relative_attention_max_distance",
                                      "rotary_percent",
                                      "rotary_base",
                                      "rotary_interleaved",
                                      "rotary_seq_len_interpolation_factor",
                                      "add_bias_linear",
                                      "add_qkv_bias",
                                      "squared_relu",
                                      "openai_gelu",
                                      "bias_gelu_fusion",
                                      "normalization",
                                      "norm_epsilon",
                                      "apply_layernorm_1p",
                                      "apply_residual_connection_post_layernorm",
                                      "untie_embeddings_and_output_weights",
                                      "bert_binary_head",
                                      "attention_dropout",
                                      "hidden_dropout",
                                      "init_method_std",
                                      "qk_layernorm",
                                      "make_vocab_size_divisible_by",
                                      "decoder_seq_length"};

// Models that a conversion of these tensors would change.
constexpr const char* refused[] = {"num_experts", "multi_latent_attention", "retro_add_retriever",
                                   "heterogeneous_layers_config_path", "use_rope_scaling"};

json value_of(const PickleValue& value) {
  if (value.is(Kind::boolean)) return value.integer != 0;
  if (value.is(Kind::integer)) return value.integer;
  if (value.is(Kind::real)) return value.real;
  if (value.is(Kind::text)) return value.text;
  return nullptr;
}

// null without it.
json saved(const PickleValue* args, std::string_view name) {
  const PickleValue* const value = args == nullptr ? nullptr : args->find(name);
  return value == nullptr ? json() : value_of(*value);
}

bool is_true(const json& value) {
  return !value.is_null() && value != false && value != 0;
}

void take_saved(const PickleValue* args, json& settings) {
  for (const char* name : taken_over) {
    if (const json value = saved(args, name); !value.is_null()) settings[name] = value;
  }
  // Names of earlier releases.
  if (const json old = saved(args, "layernorm_epsilon"); !old.is_null() && !settings.contains("norm_epsilon"))
    settings["norm_epsilon"] = old;
  if (const json old = saved(args, "disable_bias_linear");
      !old.is_null() && !settings.contains("add_bias_linear"))
    settings["add_bias_linear"] = !is_true(old);
  // The tokenizers that are the same here. NullTokenizer counts its tokens in another way.
  for (const char* type : {"GPT2BPETokenizer", "BertWordPieceLowerCase", "BertWordPieceCase"}) {
    if (saved(args, "tokenizer_type") == type) settings["tokenizer_type"] = type;
  }
  if (is_true(saved(args, "use_rotary_position_embeddings"))) settings["position_embedding_type"] = "rope";
  if (is_true(saved(args, "group_query_attention"))) {
    settings["group_query_attention"] = true;
    settings["num_query_groups"] = saved(args, "num_query_groups");
  }
}

class Shapes {
 public:
  explicit Shapes(const MegatronSource& source) : source_(source) {}

  bool has(const std::string& name) const { return source_.shapes.contains(name); }
  int64_t size(const std::string& name, size_t dimension) const {
    const auto found = source_.shapes.find(name);
    if (found != source_.shapes.end() && dimension < found->second.size()) return found->second[dimension];
    throw checkpoint_error({.what = fmt::format("tensor \"{}\" is missing", name),
                            .where = source_.where,
                            .fix = "Only whole checkpoints of GPT, BERT and T5 models are converted"});
  }
  int64_t layers(const std::string& stack) const {
    int64_t count = 0;
    while (has(fmt::format("{}.layers.{}.mlp.linear_fc1.weight", stack, count))) ++count;
    return count;
  }

 private:
  const MegatronSource& source_;
};

// What the tensors themselves show; where they and saved arguments or flags disagree, the tensors are right
// or it is an error.
void take_shapes(const MegatronSource& source, json& settings) {
  const Shapes shapes(source);
  const std::string stack = source.family == MegatronFamily::gpt ? "decoder" : "encoder";
  const std::string layer = stack + ".layers.0.";
  const int64_t hidden = shapes.size("embedding.word_embeddings.weight", 1);
  const int64_t fc1 = shapes.size(layer + "mlp.linear_fc1.weight", 0);
  const int64_t ffn = shapes.size(layer + "mlp.linear_fc2.weight", 1);
  settings.update({{"num_layers", shapes.layers(stack)}, {"hidden_size", hidden}, {"ffn_hidden_size", ffn}});
  if (source.family == MegatronFamily::t5) {
    settings["encoder_num_layers"] = shapes.layers("encoder");
    settings["decoder_num_layers"] = shapes.layers("decoder");
  }
  const std::string relative_bias = "encoder_relative_pos_emb.relative_attention_bias.weight";
  settings["swiglu"] = fc1 == 2 * ffn;
  settings["add_bias_linear"] = shapes.has(layer + "self_attention.linear_proj.bias");
  settings["add_qkv_bias"] =
      shapes.has(layer + "self_attention.linear_qkv.bias") && settings["add_bias_linear"] == false;
  settings["normalization"] = shapes.has(layer + "input_layernorm.bias") ? "LayerNorm" : "RMSNorm";
  if (shapes.has("embedding.position_embeddings.weight")) {
    settings["position_embedding_type"] = "learned_absolute";
    settings["max_position_embeddings"] = shapes.size("embedding.position_embeddings.weight", 0);
  } else if (shapes.has(relative_bias)) {
    settings["position_embedding_type"] = "relative";
    settings["relative_attention_num_buckets"] = shapes.size(relative_bias, 0);
  } else if (!settings.contains("position_embedding_type")) {
    settings["position_embedding_type"] = "rope";
  } else if (settings["position_embedding_type"] == "learned_absolute") {
    settings["position_embedding_type"] = "none";  // --no-position-embedding
  }
  if (!settings.contains("untie_embeddings_and_output_weights"))
    settings["untie_embeddings_and_output_weights"] =
        source.pipeline_ranks == 1 && shapes.has("output_layer.weight");
  if (source.family == MegatronFamily::bert) settings["bert_binary_head"] = shapes.has("binary_head.weight");
  if (!settings.contains("seq_length") && settings.contains("max_position_embeddings"))
    settings["seq_length"] = settings["max_position_embeddings"];
}

// NVIDIA's models of 345 million parameters, which are published without arguments.
bool is_published_345m(const MegatronSource& source, const json& settings) {
  return source.args == nullptr && settings["num_layers"] == 24 && settings["hidden_size"] == 1024 &&
         source.family != MegatronFamily::t5;
}

void take_heads(const MegatronSource& source, json& settings) {
  if (!settings.contains("num_attention_heads") && is_published_345m(source, settings))
    settings["num_attention_heads"] = 16;
  if (!settings.contains("num_attention_heads"))
    throw config_error(
        {.what = "the checkpoint does not say how many attention heads the model has",
         .where = source.where,
         .fix = "Give --num-attention-heads (NVIDIA's models of 345 million parameters have 16)"});
  const int64_t heads = settings["num_attention_heads"], hidden = settings["hidden_size"];
  const json groups_given = settings.value("num_query_groups", json());
  const bool grouped = is_true(settings.value("group_query_attention", json()));
  if (heads < 1 || heads > hidden)
    throw config_error(
        {.what = fmt::format("{} heads for a width of {}", heads, hidden), .where = "--num-attention-heads"});
  if (!is_true(settings.value("kv_channels", json()))) settings["kv_channels"] = hidden / heads;
  const int64_t channels = settings["kv_channels"];
  const int64_t groups = grouped && groups_given.is_number_integer() ? groups_given.get<int64_t>() : heads;
  const std::string stack = source.family == MegatronFamily::gpt ? "decoder" : "encoder";
  const int64_t rows = Shapes(source).size(stack + ".layers.0.self_attention.linear_qkv.weight", 0);
  if (channels < 1 || channels > rows || groups < 1 || groups > heads ||
      rows != (heads + 2 * groups) * channels)
    throw config_error(
        {.what = fmt::format("QKV has {} rows, which {} heads in {} query groups of {} channels do "
                             "not make",
                             rows, heads, groups, channels),
         .where = source.where,
         .fix = "Correct --num-attention-heads, --num-query-groups (with --group-query-attention) or "
                "--kv-channels"});
}

}  // namespace

json megatron_settings(const MegatronSource& source, const json& given) {
  for (const char* name : refused) {
    if (is_true(saved(source.args, name)))
      throw checkpoint_error({.what = fmt::format("models with {} are not converted", name),
                              .where = source.where,
                              .fix = "Only dense GPT, BERT and T5 models are"});
  }
  json settings = json::object();
  take_saved(source.args, settings);
  settings.update(given);
  take_shapes(source, settings);
  take_heads(source, settings);
  std::vector<Problem> problems;
  for (const auto& [name, value] : given.items()) {
    if (settings.contains(name) && settings[name] != value)
      problems.push_back({.what = fmt::format("{} is {}, but the tensors show {}", name, value.dump(),
                                              settings[name].dump()),
                          .where = source.where,
                          .fix = "Leave the flag out"});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
  settings["model_family"] = source.family == MegatronFamily::gpt    ? "gpt"
                             : source.family == MegatronFamily::bert ? "bert"
                                                                     : "t5";
  return settings;
}

int64_t saved_vocabulary(const PickleValue* args) {
  const json rows = saved(args, "orig_vocab_size"), size = saved(args, "vocab_size");
  if (rows.is_number_integer() && rows > 0) return rows;
  if (!size.is_number_integer() || size <= 0) return 0;
  // NullTokenizer's does not count its end of document.
  return size.get<int64_t>() + (saved(args, "tokenizer_type") == "NullTokenizer" ? 1 : 0);
}

}  // namespace teratron
