#include "teratron/models/vlm/hf_llava.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/models/family_formats.h"
#include "teratron/models/hf_image_keys.h"
#include "teratron/models/hf_rows.h"

namespace teratron {

FamilyFormats gpt_formats();

using nlohmann::json;
using enum HfRule;
using namespace hf_rows;

namespace {

constexpr std::string_view width = "vision_hidden_size", vision_ffn = "vision_ffn_hidden_size",
                           vision_heads = "vision_num_attention_heads", vision_layers = "encoder_num_layers",
                           features = "vision_feature_layer";

const json activations = {{"quick_gelu", "quick_gelu"},
                          {"gelu", "gelu"},
                          {"gelu_pytorch_tanh", "gelu_tanh"},
                          {"relu", "relu"},
                          {"silu", "silu"}};

void read_feature_layer(std::string_view key, HfConfig& config) {
  const json layers = config.has(key) ? config.keys[key] : json(-2);
  const json list = layers.is_array() ? layers : json::array({layers});
  const int64_t count = config.size(vision_layers);
  const auto fits = [count](const json& layer) {
    return layer.is_number_integer() && layer >= -1 - count && layer <= count;
  };
  if (list.empty() || !std::ranges::all_of(list, fits))
    return config.problem("'{}' = {} is not an output of {} layers", key, printable(layers.dump()), count);
  config.settings[features] = list;
}
void write_feature_layer(std::string_view key, HfConfig& config) {
  const json& layers = config.settings.at(features);
  config.keys[key] = layers.size() == 1 ? layers[0] : layers;
}

void read_image_token(std::string_view key, HfConfig& config) {
  const json token = config.has(key) ? config.keys[key] : json(32000);
  if (!token.is_number_integer() || token < -most_layers || token > int64_t{1} << 31)
    return config.unsupported(key);
  config.settings["image_token_id"] = token;
}

// transformers would take a negative one from the end of the embeddings.
void write_image_token(std::string_view key, HfConfig& config) {
  const json& token = config.settings.at("image_token_id");
  if (token < 0 || token >= config.size(vocab))
    config.problem("image_token_id is {}, not a token of the {}", token.dump(), config.size(vocab));
  config.keys[key] = token;
}

template <bool has_class>
void write_image_length(std::string_view key, HfConfig& config) {
  const int64_t rows =
      config.size(has_class ? "img_h:patch_dim*img_w:patch_dim+1" : "img_h:patch_dim*img_w:patch_dim");
  config.keys[key] = rows - (config.is_set("disable_vision_class_token") ? 1 : 0);
}

// clang-format off
const HfTensorOptions with_bias = {.biased = true};

const std::vector<HfTensorRow> block_rows = {
    {"input_layernorm.weight", same, {"layer_norm1.weight"}, {width}, with_bias},
    {"self_attention.linear_qkv.weight", qkv_grouped,
     {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, {width, width},
     {.heads = vision_heads, .biased = true}},
    {"self_attention.linear_proj.weight", same, {"self_attn.out_proj.weight"}, {width, width}, with_bias},
    {"pre_mlp_layernorm.weight", same, {"layer_norm2.weight"}, {width}, with_bias},
    {"mlp.linear_fc1.weight", same, {"mlp.fc1.weight"}, {vision_ffn, width}, with_bias},
    {"mlp.linear_fc2.weight", same, {"mlp.fc2.weight"}, {width, vision_ffn}, with_bias}};

const std::vector<HfTensorRow> clip_rows = {
    {"class_token", same, {"embeddings.class_embedding"}, {width}},
    {"conv1.weight", same, {"embeddings.patch_embedding.weight"},
     {width, "num_channels", "patch_dim", "patch_dim"}},
    {"position_embeddings.weight", same, {"embeddings.position_embedding.weight"},
     {"img_h:patch_dim*img_w:patch_dim+1", width}},
    {"ln_pre.weight", same, {"pre_layrnorm.weight"}, {width}, with_bias}};

const std::vector<HfTensorRow> siglip_rows = {
    {"conv1.weight", same, {"embeddings.patch_embedding.weight"},
     {width, "num_channels", "patch_dim", "patch_dim"}},
    {"conv1.bias", same, {"embeddings.patch_embedding.bias"}, {width}},
    {"position_embeddings.weight", same, {"embeddings.position_embedding.weight"},
     {"img_h:patch_dim*img_w:patch_dim", width}}};

const HfTensorRow last_norm = {"ln_post.weight", same, {"post_layernorm.weight"}, {width}, with_bias};
const HfTensorOptions of_head = {.when = {"vision_use_head"}},
                      of_head_with_bias = {.when = {"vision_use_head"}, .biased = true};
const std::vector<HfTensorRow> siglip_end = {
    last_norm,
    {"head.probe", same, {"head.probe"}, {"1", "1", width}, of_head},
    {"head.attention.in_proj_weight", same, {"head.attention.in_proj_weight"}, {"3*vision_hidden_size", width},
     of_head},
    {"head.attention.in_proj_bias", same, {"head.attention.in_proj_bias"}, {"3*vision_hidden_size"}, of_head},
    {"head.attention.out_proj.weight", same, {"head.attention.out_proj.weight"}, {width, width},
     of_head_with_bias},
    {"head.layernorm.weight", same, {"head.layernorm.weight"}, {width}, of_head_with_bias},
    {"head.mlp.fc1.weight", same, {"head.mlp.fc1.weight"}, {vision_ffn, width}, of_head_with_bias},
    {"head.mlp.fc2.weight", same, {"head.mlp.fc2.weight"}, {width, vision_ffn}, of_head_with_bias}};

const HfTensorOptions of_projector = {.bias = {"vision_projector_bias"}};
const HfTensorGroup projector = {"vision_projection.encoder.", "multi_modal_projector.", {
    {"linear_fc1.weight", same, {"linear_1.weight"}, {hidden, "vision_hidden_size*vision_feature_layer"},
     of_projector},
    {"linear_fc2.weight", same, {"linear_2.weight"}, {hidden, hidden}, of_projector}}};

const std::vector<HfKey> tower_keys = {
    {"hidden_size", width}, {"intermediate_size", vision_ffn}, {"num_hidden_layers", vision_layers},
    {"num_attention_heads", vision_heads}, {"num_channels", "num_channels"},
    {"image_size", "img_h", {.read = read_image_size, .write = write_image_size}},
    {"patch_size", "patch_dim"}, key_is("attention_dropout", 0.0)};

const std::vector<HfKey> clip_keys = {
    setting_is("vision_model_type", "clip"), only_without("vision_use_head"),
    {"hidden_act", "vision_activation", {.otherwise = "quick_gelu", .values = activations}},
    {"layer_norm_eps", "vision_norm_epsilon", {.otherwise = 1e-5}}};
const std::vector<HfKey> siglip_keys = {
    setting_is("vision_model_type", "siglip"),
    {"vision_use_head", "vision_use_head", {.otherwise = true}},
    {"hidden_act", "vision_activation", {.otherwise = "gelu_pytorch_tanh", .values = activations}},
    {"layer_norm_eps", "vision_norm_epsilon", {.otherwise = 1e-6}}};

const json clip_defaults = {
    {"hidden_size", 768}, {"intermediate_size", 3072}, {"num_hidden_layers", 12}, {"num_attention_heads", 12},
    {"num_channels", 3}, {"image_size", 224}, {"patch_size", 32}};
const json siglip_defaults = {
    {"hidden_size", 768}, {"intermediate_size", 3072}, {"num_hidden_layers", 12}, {"num_attention_heads", 12},
    {"num_channels", 3}, {"image_size", 224}, {"patch_size", 16}};
const json missing_tower = {
    {"hidden_size", 1024}, {"intermediate_size", 4096}, {"num_hidden_layers", 24}, {"num_attention_heads", 16},
    {"image_size", 336}, {"patch_size", 14}};

const std::vector<HfKey> whole_keys = {
    {"image_token_index", "image_token_id", {.read = read_image_token, .write = write_image_token}},
    {"vision_feature_layer", features, {.read = read_feature_layer, .write = write_feature_layer}},
    {"vision_feature_select_strategy", "disable_vision_class_token",
     {.otherwise = "default", .values = {{"default", true}, {"full", false}}}},
    {"projector_hidden_act", "vision_projector_activation", {.otherwise = "gelu", .values = activations}},
    {"multimodal_projector_bias", "vision_projector_bias", {.otherwise = true}},
    {"tie_word_embeddings", untied, {.otherwise = false, .negate = true, .export_only = true}},
    only_without("pixel_shuffle")};
// clang-format on

struct Beginnings {
  std::string_view of_text_model, here;
};
constexpr Beginnings our_beginnings[] = {{"", "language_model."},
                                         {"embedding.", "language_model.embedding."},
                                         {"decoder.", "language_model.decoder."},
                                         {"decoder.layers.*.", "language_model.decoder.layers.*."}};
constexpr Beginnings their_beginnings[] = {{"", "language_model."},
                                           {"model.", "language_model.model."},
                                           {"model.layers.*.", "language_model.model.layers.*."}};

std::string_view beginning(std::span<const Beginnings> all, std::string_view of_text_model) {
  const auto found = std::ranges::find(all, of_text_model, &Beginnings::of_text_model);
  TERATRON_ASSERT(found != all.end(), "no language model has tensors {}", of_text_model);
  return found->here;
}

HfFamily text_model(std::string_view type) {
  const std::vector<HfFamily> all = gpt_formats().hf;
  const auto found = std::ranges::find(all, type, &HfFamily::model_type);
  TERATRON_ASSERT(found != all.end(), "no model type {}", type);
  return *found;
}

HfPart text_part(const HfFamily& text) {
  HfPart part{.object = "text_config",
              .model_type = text.model_type,
              .assumed = text.model_type == "llama",
              .keys = text.keys,
              .defaults = text.defaults,
              .aliases = text.aliases,
              .other_keys = text.other_keys,
              .missing = json::object()};
  for (HfKey& key : part.keys) {
    if (!key.options.rows_of.empty()) key.options.rows_of = "language_model.embedding.word_embeddings.weight";
  }
  return part;
}

std::vector<HfTensorGroup> text_tensors(const HfFamily& text) {
  std::vector<HfTensorGroup> groups = text.tensors;
  for (HfTensorGroup& group : groups) {
    group.ours = beginning(our_beginnings, group.ours);
    group.theirs = beginning(their_beginnings, group.theirs);
    for (HfTensorRow& row : group.rows) {
      if (!row.options.copies.empty())
        row.options.copies = {"language_model.lm_head.weight", "lm_head.weight"};
    }
  }
  return groups;
}

std::vector<HfKey> joined(std::vector<HfKey> keys, const std::vector<HfKey>& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

HfPart tower_part(bool is_clip) {
  return {.object = "vision_config",
          .model_type = is_clip ? "clip_vision_model" : "siglip_vision_model",
          .assumed = is_clip,
          .keys = joined(tower_keys, is_clip ? clip_keys : siglip_keys),
          .defaults = is_clip ? clip_defaults : siglip_defaults,
          .other_keys = {"projection_dim", "vocab_size"},
          .missing = missing_tower};
}

std::vector<HfTensorGroup> tower_tensors(bool is_clip) {
  constexpr std::string_view ours = "vision_model.", theirs = "vision_tower.vision_model.";
  return {{ours, theirs, is_clip ? clip_rows : siglip_rows},
          {"vision_model.decoder.layers.*.", "vision_tower.vision_model.encoder.layers.*.", block_rows,
           vision_layers},
          {ours, theirs, is_clip ? std::vector{last_norm} : siglip_end},
          projector};
}

HfFamily llava(bool is_clip, std::string_view text_type) {
  const HfFamily text = text_model(text_type);
  HfFamily family{.model_type = "llava",
                  .architecture = "LlavaForConditionalGeneration",
                  .prefix = "",
                  .keys = whole_keys,
                  .tensors = tower_tensors(is_clip),
                  .aliases = {{"image_token_id", "image_token_index"}},
                  .other_keys = {"ignore_index", "vocab_size", "image_seq_length"},
                  .buffers = text.buffers,
                  .parts = {tower_part(is_clip), text_part(text)}};
  family.keys.push_back(
      {"image_seq_length",
       "",
       {.export_only = true, .write = is_clip ? write_image_length<true> : write_image_length<false>}});
  for (HfTensorGroup& group : text_tensors(text)) family.tensors.push_back(std::move(group));
  family.buffers.emplace_back("embeddings.position_ids");
  // As transformers 5 holds them, and as it saves them.
  family.old_begins = {{"vision_tower.vision_model.", "vision_tower."},
                       {"vision_tower.vision_model.", "model.vision_tower.vision_model."},
                       {"vision_tower.vision_model.", "model.vision_tower."},
                       {"multi_modal_projector.", "model.multi_modal_projector."},
                       {"language_model.model.", "model.language_model."},
                       {"language_model.lm_head.", "lm_head."}};
  return family;
}

}  // namespace

std::vector<HfFamily> llava_families() {
  std::vector<HfFamily> families;
  for (const bool is_clip : {true, false}) {
    for (const std::string_view text : {"qwen2", "llama", "mistral"})
      families.push_back(llava(is_clip, text));
  }
  return families;
}

}  // namespace teratron
