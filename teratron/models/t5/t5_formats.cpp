// T5 in files of other programs: Hugging Face's model_types t5 (v1.0, v1.1) and mt5, whose positions are
// relative; Megatron-LM's checkpoints, whose T5 has learned positions, LayerNorm and scaled scores.
#include "teratron/models/family_formats.h"
#include "teratron/models/hf_rows.h"
#include "teratron/models/megatron_rows.h"

namespace teratron {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;

namespace {

constexpr std::string_view scaled = "scale_decoder_outputs", tied_key = "tie_word_embeddings";

// Files of transformers repeat what follows from feed_forward_proj, and are read by that.
void check_activation(const std::string& name, HfConfig& config) {
  const bool gated = name.starts_with("gated-");
  const std::string plain = gated ? name.substr(name.find('-') + 1) : name;
  if (config.has("is_gated_act") && config.keys["is_gated_act"] != gated) config.unsupported("is_gated_act");
  if (config.has("dense_act_fn") &&
      config.keys["dense_act_fn"] != (name == "gated-gelu" ? "gelu_new" : plain))
    config.unsupported("dense_act_fn");
}

void read_feed_forward(std::string_view key, HfConfig& config, const char* otherwise) {
  const std::string name = config.get(key, otherwise);
  check_activation(name, config);
  json& settings = config.settings;
  for (const char* kind : {"relu", "geglu", "swiglu", "openai_gelu"}) settings[kind] = false;
  if (name == "relu") {
    settings["relu"] = true;
  } else if (name == "gated-gelu" || name == "gated-gelu_new") {
    settings["geglu"] = true;
  } else if (name == "gated-silu" || name == "gated-swish") {
    settings["swiglu"] = true;
  } else if (name == "gelu_new") {
    settings["openai_gelu"] = true;
  } else if (name == "gelu") {
    settings["bias_gelu_fusion"] = false;
  } else {
    config.unsupported(key);
  }
}

void read_t5_feed_forward(std::string_view key, HfConfig& config) {
  read_feed_forward(key, config, "relu");
}

void read_mt5_feed_forward(std::string_view key, HfConfig& config) {
  read_feed_forward(key, config, "gated-gelu");
}

void write_feed_forward(std::string_view key, HfConfig& config) {
  config.keys[key] = config.is_set("relu")                                               ? "relu"
                     : config.is_set("geglu")                                            ? "gated-gelu"
                     : config.is_set("swiglu")                                           ? "gated-silu"
                     : config.is_set("openai_gelu") || config.is_set("bias_gelu_fusion") ? "gelu_new"
                                                                                         : "gelu";
}

void read_dropout(std::string_view key, HfConfig& config) {
  config.settings["hidden_dropout"] = config.settings["attention_dropout"] = config.get(key, 0.1);
}

void write_dropout(std::string_view key, HfConfig& config) {
  config.keys[key] = config.settings["hidden_dropout"];
  if (config.settings["attention_dropout"] != config.settings["hidden_dropout"])
    config.notices.push_back(fmt::format(
        "transformers has one {} for training: hidden_dropout is written, not attention_dropout", key));
}

// Early files do not say whether logits are scaled: v1.0, which ties its embeddings, has them scaled.
void read_t5_output(std::string_view key, HfConfig& config) {
  const bool tied = config.get(key, true);
  config.settings[untied] = !tied;
  config.settings[scaled] = config.get(scaled, tied);
}

void write_t5_output(std::string_view key, HfConfig& config) {
  const bool tied = !config.is_set(untied);
  if (tied && config.is_set("lm_head_bias")) config.problem("lm_head_bias is true, not false");
  config.keys[key] = tied;
  config.keys[scaled] = config.settings[scaled];
  if (config.is_set(scaled) == tied) return;
  config.notices.push_back(
      fmt::format("transformers before version 5 does not read scale_decoder_outputs = {}, and scales logits "
                  "only of tied "
                  "embeddings",
                  config.is_set(scaled)));
}

void read_mt5_output(std::string_view key, HfConfig& config) {
  config.settings[untied] = !config.get(key, true).get<bool>();
  config.settings[scaled] = false;
}

void write_mt5_output(std::string_view key, HfConfig& config) {
  if (config.is_set(scaled)) config.problem("{} is true, not false", scaled);
  if (!config.is_set(untied) && config.is_set("lm_head_bias"))
    config.problem("lm_head_bias is true, not false");
  config.keys[key] = !config.is_set(untied);
}

// clang-format off

constexpr std::string_view inner = "num_attention_heads*kv_channels";

std::vector<HfKey> t5_keys(bool mt5) {
  const auto read_output = mt5 ? read_mt5_output : read_t5_output;
  const auto write_output = mt5 ? write_mt5_output : write_t5_output;
  return {
    {"num_layers", "num_layers"}, {"", "encoder_num_layers", {.derived = "num_layers"}},
    {"num_decoder_layers", "decoder_num_layers", {.derived = "num_layers"}},
    {"d_model", hidden, {.otherwise = 512}}, {"num_heads", heads, {.otherwise = mt5 ? 6 : 8}},
    {"d_kv", "kv_channels", {.otherwise = 64}}, {"d_ff", ffn, {.otherwise = mt5 ? 1024 : 2048}},
    {"vocab_size", vocab, {.rows_of = "embedding.word_embeddings.weight"}},
    {"n_positions", positions, {.otherwise = 512}}, {"", "seq_length", {.derived = positions}},
    {"relative_attention_num_buckets", "relative_attention_num_buckets", {.otherwise = 32}},
    {"relative_attention_max_distance", "relative_attention_max_distance", {.otherwise = 128}},
    {"layer_norm_epsilon", "norm_epsilon", {.otherwise = 1e-6}},
    {"dropout_rate", "hidden_dropout", {.read = read_dropout, .write = write_dropout}},
    {"feed_forward_proj", "relu",
     {.read = mt5 ? read_mt5_feed_forward : read_t5_feed_forward, .write = write_feed_forward}},
    {tied_key, untied, {.read = read_output, .write = write_output}},
    key_is("is_encoder_decoder", true), key_is("is_decoder", false),
    {"", "lm_head_bias", {.must_be = false, .write = [](std::string_view, HfConfig&) {}}},
    setting_is("position_embedding_type", "relative"), setting_is("softmax_scale", 1.0),
    setting_is("normalization", "RMSNorm"), setting_is("add_bias_linear", false),
    setting_is("group_query_attention", false),
    {"", "norm_position", {.must_be = "input", .export_only = true}}, only_without("add_qkv_bias"),
    only_without("add_attention_bias"),
    only_without("squared_relu"), only_without("qk_layernorm"), only_without("apply_layernorm_1p"),
    only_without("apply_residual_connection_post_layernorm")};
}

const HfTensorOptions gated = {.when = {"geglu", "swiglu"}}, plain = {.unless = {"geglu", "swiglu"}};

HfTensorRow t5_norm(std::string_view ours, std::string_view theirs) {
  return {ours, same, {theirs}, {hidden}};
}

const std::vector<HfTensorRow> t5_attention = {
    t5_norm("input_layernorm.weight", "0.layer_norm.weight"),
    {"self_attention.linear_qkv.weight", qkv_grouped,
     {"0.SelfAttention.q.weight", "0.SelfAttention.k.weight", "0.SelfAttention.v.weight"}, {inner, hidden}},
    {"self_attention.linear_proj.weight", same, {"0.SelfAttention.o.weight"}, {hidden, inner}}};
const std::vector<HfTensorRow> cross_attention = {
    t5_norm("pre_cross_attn_layernorm.weight", "1.layer_norm.weight"),
    {"cross_attention.linear_q.weight", same, {"1.EncDecAttention.q.weight"}, {inner, hidden}},
    {"cross_attention.linear_kv.weight", kv_grouped,
     {"1.EncDecAttention.k.weight", "1.EncDecAttention.v.weight"}, {inner, hidden}},
    {"cross_attention.linear_proj.weight", same, {"1.EncDecAttention.o.weight"}, {hidden, inner}}};
const std::vector<HfTensorRow> encoder_mlp = {
    t5_norm("pre_mlp_layernorm.weight", "1.layer_norm.weight"),
    {"mlp.linear_fc1.weight", same, {"1.DenseReluDense.wi.weight"}, {ffn, hidden}, plain},
    {"mlp.linear_fc1.weight", concat, {"1.DenseReluDense.wi_0.weight", "1.DenseReluDense.wi_1.weight"},
     {ffn, hidden}, gated},
    {"mlp.linear_fc2.weight", same, {"1.DenseReluDense.wo.weight"}, {hidden, ffn}}};
const std::vector<HfTensorRow> decoder_mlp = {
    t5_norm("pre_mlp_layernorm.weight", "2.layer_norm.weight"),
    {"mlp.linear_fc1.weight", same, {"2.DenseReluDense.wi.weight"}, {ffn, hidden}, plain},
    {"mlp.linear_fc1.weight", concat, {"2.DenseReluDense.wi_0.weight", "2.DenseReluDense.wi_1.weight"},
     {ffn, hidden}, gated},
    {"mlp.linear_fc2.weight", same, {"2.DenseReluDense.wo.weight"}, {hidden, ffn}}};
const HfTensorRow t5_biases = {"relative_attention_bias.weight", same, {"relative_attention_bias.weight"},
                            {"relative_attention_num_buckets", heads}};

// clang-format on

std::vector<HfTensorRow> joined(std::initializer_list<std::vector<HfTensorRow>> parts) {
  std::vector<HfTensorRow> rows;
  for (const std::vector<HfTensorRow>& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

std::vector<HfTensorGroup> t5_tensors() {
  return {{"embedding.",
           "",
           {{"word_embeddings.weight",
             same,
             {"shared.weight"},
             {vocab, hidden},
             {.copies = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}}}}},
          {"encoder_relative_pos_emb.", "encoder.block.0.layer.0.SelfAttention.", {t5_biases}},
          {"encoder.layers.*.", "encoder.block.*.layer.", joined({t5_attention, encoder_mlp}),
           "encoder_num_layers"},
          {"encoder.", "encoder.", {t5_norm("final_layernorm.weight", "final_layer_norm.weight")}},
          {"decoder_relative_pos_emb.", "decoder.block.0.layer.0.SelfAttention.", {t5_biases}},
          {"decoder.layers.*.", "decoder.block.*.layer.",
           joined({t5_attention, cross_attention, decoder_mlp}), "decoder_num_layers"},
          {"decoder.", "decoder.", {t5_norm("final_layernorm.weight", "final_layer_norm.weight")}},
          {"", "", {{"output_layer.weight", same, {"lm_head.weight"}, {vocab, hidden}, {.when = {untied}}}}}};
}

HfFamily t5_model(std::string_view type, std::string_view architecture) {
  return {.model_type = type,
          .architecture = std::string(architecture),
          .prefix = "",
          .keys = t5_keys(type == "mt5"),
          .tensors = t5_tensors(),
          .defaults = {{"vocab_size", type == "mt5" ? 250112 : 32128}, {"num_layers", type == "mt5" ? 8 : 6}},
          .aliases = {{"hidden_size", "d_model"},
                      {"num_attention_heads", "num_heads"},
                      {"num_hidden_layers", "num_layers"},
                      {"head_dim", "d_kv"}},
          .other_keys = {"is_gated_act", "dense_act_fn", "scale_decoder_outputs", "initializer_factor"},
          .buffers = {"EncDecAttention.relative_attention_bias.weight"},
          .unties = "lm_head.weight",
          .peft_task = "SEQ_2_SEQ_LM",
          .has_decoder_start = true};
}

// Self-attention, attention to the encoder, MLP.
std::vector<MegatronRow> decoder_layer() {
  using namespace megatron_rows;
  return megatron_rows::joined(
      {attention,
       {{"pre_cross_attn_layernorm.",
         "post_attention_norm.",
         {"post_attention_layernorm.", "cross_attention.linear_q.layer_norm_"}},
        {.ours = "cross_attention.linear_q.", .legacy = "inter_attention.query.", .linear = true},
        {.ours = "cross_attention.linear_kv.", .legacy = "inter_attention.key_value.", .linear = true},
        {.ours = "cross_attention.linear_proj.", .legacy = "inter_attention.dense.", .linear = true},
        mlp_norm("post_inter_attention_norm.", "post_inter_attention_layernorm.")},
       mlp});
}

}  // namespace

FamilyFormats t5_formats() {
  const std::vector<MegatronRow> relative = {{"encoder_relative_pos_emb.relative_attention_bias."},
                                             {"decoder_relative_pos_emb.relative_attention_bias."}};
  return {
      .hf = {t5_model("t5", "T5ForConditionalGeneration"), t5_model("mt5", "MT5ForConditionalGeneration")},
      .megatron =
          MegatronModel{.embeddings = megatron_rows::joined({megatron_rows::embeddings, relative}),
                        .stacks = {{.ours = "encoder",
                                    .legacy = "encoder",
                                    .other = {"transformer"},
                                    .layer = megatron_rows::layer()},
                                   {.ours = "decoder", .legacy = "decoder", .layer = decoder_layer()}},
                        .heads = megatron_rows::output,
                        .signs = {"inter_attention.", "cross_attention."},
                        .tokenizer = "BertWordPieceLowerCase"}};
}

}  // namespace teratron
