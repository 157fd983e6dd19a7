// GPT's model_types of Hugging Face: GPT-2, Llama, Mistral, Qwen2 (and 2.5), Qwen3.
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/ranges.h>

#include "teratron/base/attention_windows.h"
#include "teratron/base/error.h"
#include "teratron/models/hf_rows.h"

namespace teratron {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;

namespace {

// ---- Keys that rows cannot express ----

// Without key: as many as heads.
void read_query_groups(std::string_view key, HfConfig& config) {
  const int64_t heads = config.size("num_attention_heads");
  const int64_t groups = key.empty() ? heads : config.get(key, heads).get<int64_t>();
  if (heads % groups != 0) config.problem("'num_attention_heads' is not divisible by '{}'", key);
  config.settings["group_query_attention"] = groups != heads;
  config.settings["num_query_groups"] = groups != heads ? groups : 1;
}

void write_query_groups(std::string_view key, HfConfig& config) {
  const int64_t heads = config.size("num_attention_heads");
  const int64_t groups = config.is_set("group_query_attention") ? config.size("num_query_groups") : heads;
  if (key.empty() ? groups != heads : groups > 0 && heads % groups != 0)
    config.problem("num_query_groups is {} for {} heads", groups, heads);
  if (!key.empty()) config.keys[key] = groups;
}

// add_bias_linear includes the bias of QKV.
void write_qkv_bias(std::string_view, HfConfig& config) {
  if (config.is_set("add_qkv_bias") && !config.is_set("add_bias_linear"))
    config.problem("add_qkv_bias is true, not false");
}

// gelu_new is the tanh form, the default here; gelu is that by erf.
void write_gelu(std::string_view key, HfConfig& config) {
  const bool tanh = config.is_set("bias_gelu_fusion") || config.is_set("openai_gelu");
  config.keys[key] = tanh ? "gelu_new" : "gelu";
}

// A smaller vocabulary does not have transformers' default, 50256.
void write_special_tokens(std::string_view, HfConfig& config) {
  if (config.size("vocab_size") <= 50256) config.keys["bos_token_id"] = config.keys["eos_token_id"] = nullptr;
}

// Megatron-LM has these as constants.
const json llama3_rope = {
    {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};

int64_t whole(HfConfig& config, std::string_view key, double otherwise) {
  const double value = config.get(key, otherwise);
  if (value >= 1 && value <= 1e15 && value == std::floor(value)) return static_cast<int64_t>(value);
  config.problem("'{}' = {} is not a whole number above 0", key, value);
  return 1;
}

// Old files have rope_theta and rope_scaling, newer ones rope_parameters with both.
void read_rope(std::string_view, HfConfig& config) {
  const char* const name = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json rope = config.has(name) ? config.keys[name] : json::object();
  if (!rope.is_object()) return config.problem("'{}' is not an object", name);
  for (const auto& [key, value] : rope.items()) {
    if (!value.is_null()) config.keys[key] = value;
  }
  config.settings["rotary_base"] = whole(config, "rope_theta", 1e4);
  if (config.get("partial_rotary_factor", 1.0) != 1.0) config.unsupported("partial_rotary_factor");
  const std::string type = config.get("rope_type", config.get("type", "default"));
  if (type == "linear") {
    config.settings["rotary_seq_len_interpolation_factor"] = whole(config, "factor", 0.0);
  } else if (type == "llama3") {
    config.settings.update({{"use_rope_scaling", true}, {"rope_scaling_factor", config.get("factor", 8.0)}});
    for (const auto& [key, constant] : llama3_rope.items()) {
      if (config.get(key, constant.get<double>()) != constant) config.unsupported(key);
    }
  } else if (type != "default") {
    config.problem("rope type '{}' is not supported", printable(type));
  }
}

void write_rope(std::string_view, HfConfig& config) {
  const json& interpolation = config.settings.at("rotary_seq_len_interpolation_factor");
  json rope = {{"rope_type", "default"}, {"rope_theta", config.settings.at("rotary_base").get<double>()}};
  if (!interpolation.is_null())
    rope.update({{"rope_type", "linear"}, {"factor", interpolation.get<double>()}});
  if (config.is_set("use_rope_scaling")) {
    rope.update({{"rope_type", "llama3"}, {"factor", config.settings.at("rope_scaling_factor")}});
    rope.update(llama3_rope);
    if (interpolation > 1)
      config.problem("rotary_seq_len_interpolation_factor is set under use_rope_scaling");
  }
  config.keys["rope_parameters"] = rope;
  // Releases of transformers before rope_parameters read these two.
  config.keys["rope_theta"] = rope["rope_theta"];
  if (rope["rope_type"] != "default") config.keys["rope_scaling"] = rope;
}

// Windows: W keys there, the query's own included, are --window-size W-1,0 here. Key sliding_window: in all
// layers; key layer_types: in those it names, else from max_window_layers on; without key: none.
constexpr int64_t most_layers = 1 << 20;
constexpr const char *sliding = "sliding_attention", *full = "full_attention";

void read_windows(std::string_view key, HfConfig& config) {
  const bool per_layer = key == "layer_types";
  if ((per_layer && !config.get("use_sliding_window", false)) || !config.has("sliding_window")) return;
  const int64_t window = config.get("sliding_window", nullptr), layers = config.size("num_layers");
  if (window >= config.size("max_position_embeddings")) return;  // every position sees all before it
  if (layers > most_layers) return config.unsupported("num_hidden_layers");
  json types(static_cast<size_t>(layers), sliding);
  const double first = per_layer ? config.get("max_window_layers", 28.0).get<double>() : 0;
  for (int64_t layer = 0; layer < layers && static_cast<double>(layer) < first; ++layer) types[layer] = full;
  if (per_layer && config.has(key)) types = config.keys[key];
  const auto windows = std::count(types.begin(), types.end(), sliding);
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers ||
      windows + std::count(types.begin(), types.end(), full) != layers)
    return config.unsupported(key);
  if (windows > 0) config.settings["window_size"] = fmt::format("{},0", window - 1);
  if (windows == 0 || windows == layers) return;
  std::vector<int> pattern;
  for (const json& type : types) pattern.push_back(type == sliding);
  config.settings["window_attn_skip_freq"] = fmt::format("[{}]", fmt::join(pattern, ","));
}

void write_windows(std::string_view key, HfConfig& config) {
  WindowOptions options;
  const json &size = config.settings.at("window_size"), &skip = config.settings.at("window_attn_skip_freq");
  if (!size.is_null()) options.window_size = size;
  if (!skip.is_null()) options.window_attn_skip_freq = skip;
  const int64_t layers = config.size("num_layers");
  if (layers > most_layers) return config.problem("num_layers is {}", layers);
  if ((!size.is_null() && !is_valid_window_size(*options.window_size)) ||
      (!skip.is_null() && !is_valid_window_pattern(*options.window_attn_skip_freq, layers)))
    return config.problem("window_size or window_attn_skip_freq is malformed");
  const std::vector<int64_t> windows = attention_windows(options, layers);
  const auto first = std::ranges::find_if(windows, [](int64_t window) { return window > 0; });
  if (key == "sliding_window") config.keys[key] = first == windows.end() ? json() : json(*first);
  if (first == windows.end()) return;
  if (key.empty() || (key == "sliding_window" && std::ranges::count(windows, *first) != layers))
    return config.problem("window_size is {}, window_attn_skip_freq {}", size.dump(), skip.dump());
  if (key == "sliding_window") return;
  json types = json::array();
  for (const int64_t window : windows) types.push_back(window > 0 ? sliding : full);
  config.keys.update({{"use_sliding_window", true},
                      {"sliding_window", *first},
                      {"max_window_layers", first - windows.begin()},
                      {"layer_types", types}});
}

// ---- Rows ----
// clang-format off

constexpr std::string_view queries = "num_attention_heads*kv_channels";
const HfKeyOptions groups = {.read = read_query_groups, .write = write_query_groups};
const HfKeyOptions windows = {.read = read_windows, .write = write_windows};
const HfKeyOptions no_windows = {.export_only = true, .write = write_windows};
const HfKeyOptions head_size = {.derived = "hidden_size/num_attention_heads"};
const HfKeyOptions embedded = {.rows_of = "embedding.word_embeddings.weight"};
const HfTensorOptions qk_norm = {.when = "qk_layernorm"};
const HfTensorOptions qkv_biased = {.bias = {"add_bias_linear", "add_qkv_bias"}};
const HfTensorOptions copied = {.copies = {"lm_head.weight"}};  // a file may hold a tied output layer too
const HfTensorGroup head = {"", "", {{"output_layer.weight", same, {"lm_head.weight"}, {vocab, hidden}, {untied}}}};

const std::vector<HfKey> common_keys = {
    {"initializer_range", "init_method_std", {.otherwise = 0.02}},
    {"", "seq_length", {.derived = positions}},
    {"", "rotary_percent", {.must_be = 1.0, .export_only = true}},
    {"", "squared_relu", never}, {"", "geglu", never}, {"", "rotary_interleaved", never},
    {"", "apply_layernorm_1p", never}, {"", "apply_residual_connection_post_layernorm", never}};

const json gelu_names = {{"gelu_new", true}, {"gelu_pytorch_tanh", true}, {"gelu", false}};
const std::vector<HfKey> gpt2_keys = {
    {"n_layer", "num_layers"}, {"n_embd", hidden}, {"n_head", heads}, {"", "num_query_groups", groups},
    {"", "kv_channels", head_size}, {"n_inner", ffn, {.derived = "4*hidden_size"}},
    {"n_positions", positions}, {"n_ctx", positions, {.export_only = true}},
    {"", "position_embedding_type", {.must_be = "learned_absolute"}}, {"", "window_size", no_windows},
    {"", "normalization", {.must_be = "LayerNorm"}}, {"layer_norm_epsilon", "norm_epsilon", {.otherwise = 1e-5}},
    {"activation_function", "bias_gelu_fusion", {.otherwise = "gelu_new", .values = gelu_names, .write = write_gelu}},
    {"", "swiglu", no}, {"", "add_bias_linear", yes}, {"", "add_qkv_bias", {.otherwise = false}}, {"", "qk_layernorm", never},
    {"attn_pdrop", "attention_dropout", {.otherwise = 0.1}}, {"resid_pdrop", "hidden_dropout", {.otherwise = 0.1}},
    {"embd_pdrop", "hidden_dropout", {.otherwise = 0.1, .export_only = true}},
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}},
    {"scale_attn_weights", "", yes}, {"scale_attn_by_inverse_layer_idx", "", no}, {"add_cross_attention", "", no},
    {"vocab_size", vocab, embedded}, {"eos_token_id", vocab, {.export_only = true, .write = write_special_tokens}}};

const std::vector<HfTensorGroup> gpt2_tensors = {
    {"embedding.", "transformer.", {
        {"word_embeddings.weight", same, {"wte.weight"}, {vocab, hidden}, copied},
        {"position_embeddings.weight", same, {"wpe.weight"}, {positions, hidden}}}},
    {"decoder.layers.*.", "transformer.h.*.", {
        {"input_layernorm.weight", same, {"ln_1.weight"}, {hidden}, biased},
        {"self_attention.linear_qkv.weight", qkv_fused, {"attn.c_attn.weight"}, {queries, hidden}, biased},
        {"self_attention.linear_proj.weight", transpose, {"attn.c_proj.weight"}, {hidden, hidden}, biased},
        {"pre_mlp_layernorm.weight", same, {"ln_2.weight"}, {hidden}, biased},
        {"mlp.linear_fc1.weight", transpose, {"mlp.c_fc.weight"}, {ffn, hidden}, biased},
        {"mlp.linear_fc2.weight", transpose, {"mlp.c_proj.weight"}, {hidden, ffn}, biased}}, "num_layers"},
    {"decoder.", "transformer.", {{"final_layernorm.weight", same, {"ln_f.weight"}, {hidden}, biased}}},
    head};

const std::vector<HfKey> llama_keys = {
    {"num_hidden_layers", "num_layers"}, {"hidden_size", hidden}, {"intermediate_size", ffn}, {"vocab_size", vocab, embedded},
    {"num_attention_heads", heads}, {"num_key_value_heads", "num_query_groups", groups}, {"head_dim", "kv_channels", head_size},
    {"max_position_embeddings", positions, {.otherwise = 2048}}, {"", "position_embedding_type", {.must_be = "rope"}},
    {"rope_parameters", "rotary_base", {.read = read_rope, .write = write_rope}},
    {"", "normalization", {.must_be = "RMSNorm"}}, {"rms_norm_eps", "norm_epsilon", {.otherwise = 1e-6}},
    {"hidden_act", "swiglu", {.otherwise = "silu", .values = {{"silu", true}}}},
    {"attention_dropout", "attention_dropout", {.otherwise = 0.0}}, {"", "hidden_dropout", {.otherwise = 0.0}},
    {"tie_word_embeddings", untied, {.otherwise = false, .negate = true}}};

const std::vector<HfTensorGroup> llama_tensors = {
    {"embedding.", "model.", {{"word_embeddings.weight", same, {"embed_tokens.weight"}, {vocab, hidden}, copied}}},
    {"decoder.layers.*.", "model.layers.*.", {
        {"input_layernorm.weight", same, {"input_layernorm.weight"}, {hidden}},
        {"self_attention.linear_qkv.weight", qkv_grouped,
         {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, {queries, hidden}, qkv_biased},
        {"self_attention.linear_proj.weight", same, {"self_attn.o_proj.weight"}, {hidden, queries}, biased},
        {"self_attention.q_layernorm.weight", same, {"self_attn.q_norm.weight"}, {"kv_channels"}, qk_norm},
        {"self_attention.k_layernorm.weight", same, {"self_attn.k_norm.weight"}, {"kv_channels"}, qk_norm},
        {"pre_mlp_layernorm.weight", same, {"post_attention_layernorm.weight"}, {hidden}},
        {"mlp.linear_fc1.weight", concat, {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, {ffn, hidden}, biased},
        {"mlp.linear_fc2.weight", same, {"mlp.down_proj.weight"}, {hidden, ffn}, biased}}, "num_layers"},
    {"decoder.", "model.", {{"final_layernorm.weight", same, {"norm.weight"}, {hidden}}}},
    head};

// Of the families like Llama, which differ in keys and settings alone.
const std::vector<HfKey> qwen3_keys = {
    {"mlp_bias", "", no}, {"attention_bias", "", no}, {"", "add_bias_linear", no}, {"", "add_qkv_bias", no},
    {"", "qk_layernorm", yes}, {"layer_types", "window_size", windows}};
const std::vector<HfKey> qwen2_keys = {
    {"", "add_bias_linear", no}, {"", "add_qkv_bias", yes}, {"", "qk_layernorm", never}, {"layer_types", "window_size", windows}};
const std::vector<HfKey> llama_own_keys = {
    {"mlp_bias", "add_bias_linear", {.otherwise = false}}, {"attention_bias", "add_bias_linear", {.otherwise = false}},
    {"", "add_qkv_bias", {.otherwise = false, .write = write_qkv_bias}}, {"", "qk_layernorm", never},
    {"", "window_size", no_windows}};
const std::vector<HfKey> mistral_keys = {
    {"mlp_bias", "", no}, {"attention_bias", "", no}, {"", "add_bias_linear", no}, {"", "add_qkv_bias", no},
    {"", "qk_layernorm", never}, {"sliding_window", "window_size", windows}};
// clang-format on

// With the common keys.
std::vector<HfKey> all_keys(std::vector<HfKey> keys, const std::vector<HfKey>& own) {
  keys.insert(keys.end(), own.begin(), own.end());
  keys.insert(keys.end(), common_keys.begin(), common_keys.end());
  return keys;
}

HfFamily llama_like(std::string_view type, std::string_view architecture, const std::vector<HfKey>& own) {
  return {type, architecture, "model.", all_keys(llama_keys, own), llama_tensors, {".rotary_emb.inv_freq"}};
}

}  // namespace

std::vector<HfFamily> gpt_hf_families() {
  return {{.model_type = "gpt2",
           .architecture = "GPT2LMHeadModel",
           .prefix = "transformer.",
           .keys = all_keys(gpt2_keys, {}),
           .tensors = gpt2_tensors,
           .buffers = {".attn.bias", ".attn.masked_bias"}},
          llama_like("qwen3", "Qwen3ForCausalLM", qwen3_keys),
          llama_like("qwen2", "Qwen2ForCausalLM", qwen2_keys),
          llama_like("llama", "LlamaForCausalLM", llama_own_keys),
          llama_like("mistral", "MistralForCausalLM", mistral_keys)};
}

}  // namespace teratron
