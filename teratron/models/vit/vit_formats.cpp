// Image classifiers in files of other programs: Hugging Face's model_type vit.
#include "teratron/base/error.h"
#include "teratron/models/family_formats.h"
#include "teratron/models/hf_image_keys.h"
#include "teratron/models/hf_rows.h"

namespace teratron {

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;

namespace {

void read_vit_activation(std::string_view key, HfConfig& config) {
  const std::string name = config.get(key, "gelu");
  const bool tanh = name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh";
  if (!tanh && name != "gelu") return config.unsupported(key);
  config.settings["openai_gelu"] = tanh;
  config.settings["bias_gelu_fusion"] = false;
}
void write_vit_activation(std::string_view key, HfConfig& config) {
  config.keys[key] =
      config.is_set("openai_gelu") || config.is_set("bias_gelu_fusion") ? "gelu_pytorch_tanh" : "gelu";
}

// Classes are numbered from 0; names that say no more than that are left to their numbers.
void read_classes(std::string_view key, HfConfig& config) {
  const json labels = config.get(key, json::object());
  if (!labels.is_object()) return config.unsupported(key);
  const int64_t count = labels.empty() ? 2 : std::ssize(labels);
  json names = json::array();
  bool named = false;
  for (int64_t label = 0; label < count && !labels.empty(); ++label) {
    const std::string number = std::to_string(label);
    if (!labels.contains(number) || !labels[number].is_string()) return config.unsupported(key);
    named = named || labels[number] != "LABEL_" + number;
    names.push_back(labels[number]);
  }
  config.settings["num_classes"] = count;
  config.settings["class_names"] = named ? names : json::array();
}
void write_classes(std::string_view key, HfConfig& config) {
  const json& given = config.settings.at("class_names");
  json names = json::object(), numbers = json::object();
  for (int64_t label = 0; label < config.size("num_classes"); ++label) {
    const std::string name = given.empty() ? fmt::format("LABEL_{}", label)
                                           : given.at(static_cast<size_t>(label)).get<std::string>();
    names[std::to_string(label)] = name;
    numbers[name] = label;
  }
  config.keys[key] = names;
  config.keys["label2id"] = numbers;
}

// The patches of an image and the class token.
constexpr std::string_view rows = "img_h:patch_dim*img_w:patch_dim+1";

// clang-format off
const HfTensorOptions and_bias = {.biased = true};

const std::vector<HfKey> vit_keys = {
    {"num_hidden_layers", "num_layers"}, {"hidden_size", hidden}, {"num_attention_heads", heads},
    {"intermediate_size", ffn}, {"num_channels", "num_channels"}, {"patch_size", "patch_dim"},
    {"image_size", "img_h", {.read = hf_rows::read_image_size, .write = hf_rows::write_image_size}},
    {"hidden_act", "openai_gelu", {.read = read_vit_activation, .write = write_vit_activation}},
    {"layer_norm_eps", "norm_epsilon", {.otherwise = 1e-12}},
    {"hidden_dropout_prob", "hidden_dropout", {.otherwise = 0.0}},
    {"attention_probs_dropout_prob", "attention_dropout", {.otherwise = 0.0}},
    {"initializer_range", "init_method_std", {.otherwise = 0.02}},
    {"id2label", "num_classes", {.read = read_classes, .write = write_classes}},
    key_is("qkv_bias", true),
    setting_is("vit_head", "linear"), setting_is("add_bias_linear", true),
    setting_is("group_query_attention", false), setting_is("normalization", "LayerNorm"),
    setting_is("position_embedding_type", "none"), setting_is("tokenizer_type", "NullTokenizer"),
    setting_is(vocab, 1),
    {"", "kv_channels", {.derived = "hidden_size/num_attention_heads"}},
    {"", "seq_length", {.derived = rows}}, {"", positions, {.derived = rows}},
    only_without("swiglu"), only_without("geglu"), only_without("squared_relu"), only_without("relu"),
    only_without("quick_geglu"), only_without("qk_layernorm"), only_without("apply_layernorm_1p")};

const std::vector<HfTensorGroup> vit_tensors = {
    {"", "vit.embeddings.", {
        {"class_token", same, {"cls_token"}, {"1", "1", hidden}},
        {"conv1.weight", same, {"patch_embeddings.projection.weight"},
         {hidden, "num_channels", "patch_dim", "patch_dim"}, and_bias},
        {"position_embeddings", same, {"position_embeddings"},
         {"1", rows, hidden}}}},
    {"encoder.layers.*.", "vit.encoder.layer.*.", {
        {"input_layernorm.weight", same, {"layernorm_before.weight"}, {hidden}, and_bias},
        {"self_attention.linear_qkv.weight", qkv_grouped,
         {"attention.attention.query.weight", "attention.attention.key.weight",
          "attention.attention.value.weight"}, {hidden, hidden}, and_bias},
        {"self_attention.linear_proj.weight", same, {"attention.output.dense.weight"}, {hidden, hidden}, and_bias},
        {"pre_mlp_layernorm.weight", same, {"layernorm_after.weight"}, {hidden}, and_bias},
        {"mlp.linear_fc1.weight", same, {"intermediate.dense.weight"}, {ffn, hidden}, and_bias},
        {"mlp.linear_fc2.weight", same, {"output.dense.weight"}, {hidden, ffn}, and_bias}}, "num_layers"},
    {"encoder.", "vit.", {{"final_layernorm.weight", same, {"layernorm.weight"}, {hidden}, and_bias}}},
    {"", "", {{"classification_head.weight", same, {"classifier.weight"}, {"num_classes", hidden}, and_bias}}}};
// clang-format on

}  // namespace

FamilyFormats vit_formats() {
  return {.hf = {{.model_type = "vit",
                  .architecture = "ViTForImageClassification",
                  .prefix = "vit.",
                  .keys = vit_keys,
                  .tensors = vit_tensors,
                  .defaults = {{"num_hidden_layers", 12},
                               {"hidden_size", 768},
                               {"num_attention_heads", 12},
                               {"intermediate_size", 3072},
                               {"num_channels", 3},
                               {"image_size", 224},
                               {"patch_size", 16}},
                  .other_keys = {"encoder_stride", "pooler_act", "pooler_output_size"},
                  .unread = {"pooler.", "vit.pooler."},
                  .heads = {"classification_head."}}}};
}

}  // namespace teratron
