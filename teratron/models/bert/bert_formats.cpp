// BERT in files of other programs: Hugging Face's model_types bert and megatron-bert, and Megatron-LM's
// checkpoints. Post-norm BERT is the encoder with residuals after the norms
// (--apply-residual-connection-post-layernorm); each of its norms belongs to the layer after it.
#include "teratron/models/family_formats.h"
#include "teratron/models/hf_rows.h"
#include "teratron/models/megatron_rows.h"

namespace teratron {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;

namespace {

// One activation is that of the layers and of the LM head, whose GELU is by erf unless --openai-gelu is
// given.
void read_activation(std::string_view key, HfConfig& config) {
  const std::string name = config.get(key, "gelu");
  const bool tanh = name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh";
  if (!tanh && name != "gelu") return config.unsupported(key);
  config.settings["openai_gelu"] = tanh;
  config.settings["bias_gelu_fusion"] = false;
}

void write_activation(std::string_view key, HfConfig& config) {
  const bool tanh = config.is_set("openai_gelu");
  const bool fused = !tanh && config.is_set("bias_gelu_fusion");
  config.keys[key] = tanh || fused ? "gelu_new" : "gelu";
  if (!fused) return;
  config.notices.push_back(
      "transformers has one hidden_act, this model two GELUs: that of the layers is kept (gelu_new), and "
      "that "
      "of the LM head is approximated, which changes logits by about 0.1 %; models trained with "
      "--no-bias-gelu-fusion or --openai-gelu are exported exactly");
}

// clang-format off

std::vector<HfKey> bert_keys(bool post_norm) {
  return {
    {"num_hidden_layers", "num_layers"}, {"hidden_size", hidden}, {"num_attention_heads", heads},
    {"intermediate_size", ffn}, {"max_position_embeddings", positions}, key_is("type_vocab_size", 2),
    {"vocab_size", vocab, {.rows_of = "embedding.word_embeddings.weight"}},
    {"hidden_act", "openai_gelu", {.read = read_activation, .write = write_activation}},
    {"layer_norm_eps", "norm_epsilon", {.otherwise = 1e-12}},
    {"hidden_dropout_prob", "hidden_dropout", {.otherwise = 0.1}},
    {"attention_probs_dropout_prob", "attention_dropout", {.otherwise = 0.1}},
    {"initializer_range", "init_method_std", {.otherwise = 0.02}},
    {"tie_word_embeddings", untied, {.otherwise = true, .negate = true}},
    key_is("position_embedding_type", "absolute"), key_is("is_decoder", false),
    key_is("add_cross_attention", false),
    setting_is("apply_residual_connection_post_layernorm", post_norm), setting_is("bert_binary_head", true),
    setting_is(untied, false), setting_is("add_bias_linear", true),
    setting_is("group_query_attention", false),
    {"", "kv_channels", {.derived = "hidden_size/num_attention_heads"}},
    {"", "seq_length", {.derived = positions}},
    setting_is("position_embedding_type", "learned_absolute"), setting_is("normalization", "LayerNorm"),
    only_without("swiglu"), only_without("geglu"), only_without("squared_relu"), only_without("qk_layernorm"),
    only_without("apply_layernorm_1p")};
}

const json bert_defaults = {{"vocab_size", 30522}, {"hidden_size", 768}, {"num_hidden_layers", 12},
                            {"num_attention_heads", 12}, {"intermediate_size", 3072},
                            {"max_position_embeddings", 512}};
const json megatron_bert_defaults = {{"vocab_size", 29056}, {"hidden_size", 1024}, {"num_hidden_layers", 24},
                                     {"num_attention_heads", 16}, {"intermediate_size", 4096},
                                     {"max_position_embeddings", 512}};

const HfTensorGroup embeddings = {"embedding.", "bert.embeddings.", {
    {"word_embeddings.weight", same, {"word_embeddings.weight"}, {vocab, hidden},
     {.copies = {"cls.predictions.decoder.weight"}}},
    {"position_embeddings.weight", same, {"position_embeddings.weight"}, {positions, hidden}},
    {"tokentype_embeddings.weight", same, {"token_type_embeddings.weight"}, {"2", hidden}}}};
const HfTensorRow qkv = {"self_attention.linear_qkv.weight", qkv_grouped,
    {"attention.self.query.weight", "attention.self.key.weight", "attention.self.value.weight"},
    {hidden, hidden}, biased};
const HfTensorRow projection = {"self_attention.linear_proj.weight", same, {"attention.output.dense.weight"},
    {hidden, hidden}, biased};
const HfTensorRow fc1 = {"mlp.linear_fc1.weight", same, {"intermediate.dense.weight"}, {ffn, hidden}, biased};
const HfTensorRow fc2 = {"mlp.linear_fc2.weight", same, {"output.dense.weight"}, {hidden, ffn}, biased};
const HfTensorGroup tail = {"", "", {
    {"lm_head.dense.weight", same, {"cls.predictions.transform.dense.weight"}, {hidden, hidden}, biased},
    {"lm_head.layer_norm.weight", same, {"cls.predictions.transform.LayerNorm.weight"}, {hidden}, biased},
    {"output_layer.bias", same, {"cls.predictions.bias"}, {vocab},
     {.copies = {"cls.predictions.decoder.bias"}}},
    {"pooler.dense.weight", same, {"bert.pooler.dense.weight"}, {hidden, hidden}, biased},
    {"binary_head.weight", same, {"cls.seq_relationship.weight"}, {"2", hidden}, biased}}};

HfTensorRow norm(std::string_view ours, std::string_view theirs) {
  return {ours, same, {theirs}, {hidden}, biased};
}

// clang-format on

std::vector<HfTensorGroup> pre_norm_tensors() {
  return {embeddings,
          {"encoder.layers.*.",
           "bert.encoder.layer.*.",
           {norm("input_layernorm.weight", "attention.ln.weight"), qkv, projection,
            norm("pre_mlp_layernorm.weight", "ln.weight"), fc1, fc2},
           "num_layers"},
          {"encoder.", "bert.encoder.", {norm("final_layernorm.weight", "ln.weight")}},
          tail};
}

std::vector<HfTensorGroup> post_norm_tensors() {
  constexpr std::string_view theirs = "output.LayerNorm.weight";
  return {embeddings,
          {"encoder.layers.0.", "bert.embeddings.", {norm("input_layernorm.weight", "LayerNorm.weight")}},
          {"encoder.layers.*.",
           "bert.encoder.layer.*.",
           {qkv, projection, norm("pre_mlp_layernorm.weight", "attention.output.LayerNorm.weight"), fc1, fc2},
           "num_layers"},
          {"encoder.layers.*+1.",
           "bert.encoder.layer.*.",
           {norm("input_layernorm.weight", theirs)},
           "num_layers",
           HfLayers::but_last},
          {"encoder.",
           "bert.encoder.layer.*.",
           {norm("final_layernorm.weight", theirs)},
           "num_layers",
           HfLayers::last},
          tail};
}

HfFamily bert_model(std::string_view type, std::string_view architecture, bool post_norm) {
  return {.model_type = type,
          .architecture = std::string(architecture),
          .prefix = "bert.",
          .keys = bert_keys(post_norm),
          .tensors = post_norm ? post_norm_tensors() : pre_norm_tensors(),
          .defaults = post_norm ? bert_defaults : megatron_bert_defaults,
          .other_keys = {"directionality", "pooler_fc_size", "pooler_num_attention_heads",
                         "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"},
          .buffers = {"embeddings.position_ids"},
          .old_ends = {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}},
          .heads = {"lm_head.", "output_layer.", "pooler.", "binary_head."}};
}

std::vector<MegatronRow> megatron_heads() {
  return megatron_rows::joined(
      {{{"pooler.dense.", "language_model/pooler/dense."}},
       megatron_rows::output,
       {{"lm_head.dense.", "lm_head/dense."},
        {"lm_head.layer_norm.", "lm_head/norm.", {"lm_head.layernorm."}},
        {.ours = "binary_head.", .legacy = "binary_head/", .setting = "bert_binary_head"}}});
}

}  // namespace

FamilyFormats bert_formats() {
  return {.hf = {bert_model("megatron-bert", "MegatronBertForPreTraining", false),
                 bert_model("bert", "BertForPreTraining", true)},
          .hf_classifier =
              HfTensorRow{
                  "classification_head.weight", same, {"classifier.weight"}, {"num_classes", hidden}, biased},
          .megatron = MegatronModel{.embeddings = megatron_rows::embeddings,
                                    .stacks = {{.ours = "encoder",
                                                .legacy = "encoder",
                                                .other = {"transformer"},
                                                .layer = megatron_rows::layer()}},
                                    .heads = megatron_heads(),
                                    .signs = {"lm_head.dense.", "tokentype_embeddings.", "binary_head."},
                                    .tokenizer = "BertWordPieceLowerCase"}};
}

}  // namespace teratron
