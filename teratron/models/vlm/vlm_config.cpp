#include "teratron/models/vlm/vlm_config.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/models/family.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/hybrid_flags.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

constexpr std::string_view names[] = {"quick_gelu", "gelu", "gelu_tanh", "relu", "silu"};
constexpr Activation kinds[] = {Activation::quick_gelu, Activation::gelu_erf, Activation::gelu,
                                Activation::relu, Activation::silu};

Activation activation_of(std::string_view name) {
  const auto* const found = std::ranges::find(names, name);
  TERATRON_ASSERT(found != std::end(names), "{}", name);
  return kinds[found - std::begin(names)];
}

bool is_clip(const Arguments& args) {
  return args.vision_model_type == "clip";
}

// -1 is the last layer's output, of which there are `layers` + 1 with the first one's input.
int64_t hidden_state(int64_t layer, int64_t layers) {
  return layer < 0 ? layers + 1 + layer : layer;
}

TransformerConfig blocks(const Arguments& args, const GPTConfig& language) {
  const std::string act = args.vision_activation.value_or(is_clip(args) ? "quick_gelu" : "gelu_tanh");
  TransformerConfig config{.layers = args.encoder_num_layers.value(),
                           .hidden = args.vision_hidden_size.value(),
                           .ffn_hidden = args.vision_ffn_hidden_size.value(),
                           .heads = args.vision_num_attention_heads.value(),
                           .query_groups = *args.vision_num_attention_heads,
                           .kv_channels = *args.vision_hidden_size / *args.vision_num_attention_heads,
                           .mask = Mask::full,
                           .position = PositionEmbedding::none,
                           .norm = {.kind = NormKind::layer, .eps = args.vision_norm_epsilon},
                           .activation = activation_of(act),
                           .init_std = language.init_std,
                           .xavier_init = language.xavier_init,
                           .recompute = language.recompute,
                           .bf16_layers_at_start = *args.encoder_num_layers};
  config.recompute.distribute_inputs = false;  // sequences of patches have any length
  return config;
}

VisionConfig vision_config(const Arguments& args, const GPTConfig& language) {
  VisionConfig config{.kind = is_clip(args) ? VisionConfig::Kind::clip : VisionConfig::Kind::siglip,
                      .blocks = blocks(args, language),
                      .height = args.img_h,
                      .width = args.img_w,
                      .channels = args.num_channels,
                      .patch = args.patch_dim,
                      .feature_layers = {},
                      .drops_first_row = args.disable_vision_class_token,
                      .pixel_shuffle = args.pixel_shuffle,
                      .has_head = args.vision_use_head,
                      .frozen = args.freeze_ViT,
                      .replicated = args.vision_tensor_model_parallel_size == 1};
  for (const int64_t layer : args.vision_feature_layer)
    config.feature_layers.push_back(hidden_state(layer, config.blocks.layers));
  return config;
}

// Rows of an image, for lengths of sequences.
int64_t rows_of_image(const Arguments& args) {
  const VisionConfig sizes{.kind = is_clip(args) ? VisionConfig::Kind::clip : VisionConfig::Kind::siglip,
                           .height = args.img_h,
                           .width = args.img_w,
                           .patch = args.patch_dim,
                           .drops_first_row = args.disable_vision_class_token,
                           .pixel_shuffle = args.pixel_shuffle};
  return sizes.rows();
}

// As Megatron-LM, which takes --seq-length for that of the tower.
void derive_length(Validation& v) {
  Arguments& a = v.args;
  if (a.dataloader_seq_length) {
    const int64_t length = *a.dataloader_seq_length + rows_of_image(a);
    if (v.chosen("seq_length") && a.seq_length != length)
      v.note(fmt::format("seq_length = {}: dataloader_seq_length = {} and the {} rows of an image", length,
                         *a.dataloader_seq_length, rows_of_image(a)));
    v.derive("seq_length", a.seq_length, length);
  }
  if (!a.dataloader_seq_length && a.decoder_seq_length)
    v.derive("seq_length", a.seq_length, a.decoder_seq_length);
  a.decoder_seq_length.reset();  // there is one sequence
}

bool is_hidden_state(int64_t layer, int64_t layers) {
  const int64_t number = hidden_state(layer, layers);
  return number >= 0 && number <= layers;
}

// Sizes that do not fit each other.
void check_tower(const Arguments& args, std::vector<Problem>& problems) {
  const auto reject = [&problems](bool wrong, std::string what, const char* flag, const char* fix) {
    if (wrong) problems.push_back({.what = std::move(what), .where = flag, .fix = fix});
  };
  if (!args.vision_hidden_size || !args.vision_num_attention_heads || !args.encoder_num_layers) return;
  const int64_t layers = *args.encoder_num_layers;
  reject(*args.vision_hidden_size % *args.vision_num_attention_heads != 0,
         fmt::format("vision_hidden_size = {} is not divisible by vision_num_attention_heads = {}",
                     *args.vision_hidden_size, *args.vision_num_attention_heads),
         "--vision-num-attention-heads", "Use a divisor");
  reject(args.patch_dim > std::min(args.img_h, args.img_w),
         fmt::format("a patch of {} pixels is larger than an image of {} x {}", args.patch_dim, args.img_h,
                     args.img_w),
         "--patch-dim", "Use smaller patches");
  reject(args.vision_feature_layer.empty(), "the projector reads no layer of the vision tower",
         "--vision-feature-layer", "Use -1 for the last");
  for (const int64_t layer : args.vision_feature_layer) {
    reject(!is_hidden_state(layer, layers),
           fmt::format("the vision tower of {} layers has no output {}", layers, layer),
           "--vision-feature-layer", "Count from 1, or from -1 for the last; 0 is the input of the first");
  }
}

// Squares of four rows need an even grid without a class token.
void check_shuffle(const Arguments& args, std::vector<Problem>& problems) {
  if (!args.pixel_shuffle) return;
  const int64_t lines = args.img_h / args.patch_dim, columns = args.img_w / args.patch_dim;
  const bool has_class = is_clip(args) && !args.disable_vision_class_token;
  const bool lacks_patch = !is_clip(args) && args.disable_vision_class_token;
  if (lines % 2 == 0 && columns % 2 == 0 && !has_class && !lacks_patch) return;
  problems.push_back({.what = has_class ? "the class token has no place among squares of four rows"
                              : lacks_patch
                                  ? "SigLIP has no class token: a patch would be left out"
                                  : fmt::format("{} x {} patches are not squares of four", lines, columns),
                      .where = "--pixel-shuffle",
                      .fix = has_class     ? "Add --disable-vision-class-token"
                             : lacks_patch ? "Leave --disable-vision-class-token out"
                                           : "Use images of an even number of patches in height and width"});
}

}  // namespace

void derive_vlm(Validation& v) {
  Arguments& a = v.args;
  if (!a.encoder_num_layers) v.derive("encoder_num_layers", a.encoder_num_layers, a.num_layers);
  if (!a.vision_ffn_hidden_size && !a.vision_hidden_size && a.ffn_hidden_size)
    v.derive("vision_ffn_hidden_size", a.vision_ffn_hidden_size, a.ffn_hidden_size);
  if (!a.vision_hidden_size) v.derive("vision_hidden_size", a.vision_hidden_size, a.hidden_size);
  if (!a.vision_num_attention_heads)
    v.derive("vision_num_attention_heads", a.vision_num_attention_heads, a.num_attention_heads);
  if (!a.vision_ffn_hidden_size && a.vision_hidden_size)
    v.derive("vision_ffn_hidden_size", a.vision_ffn_hidden_size, 4 * *a.vision_hidden_size);
  derive_length(v);
}

void check_vlm(const Arguments& args, std::vector<Problem>& problems) {
  if (args.num_experts) problems.push_back(no_experts());
  refuse_hybrids(args, problems);
  Arguments decoder = args;
  if (args.sft && args.chat_template == "plain") {  // of images alone
    decoder.sft = false;
    decoder.chat_template.reset();
  }
  check_decoder(decoder, problems);
  check_tower(args, problems);
  check_shuffle(args, problems);
  const auto reject = [&problems](bool wrong, const char* what, const char* flag, const char* fix) {
    if (wrong) problems.push_back({.what = what, .where = flag, .fix = fix});
  };
  reject(args.freeze_LM && args.freeze_ViT && args.freeze_projector && !args.lora_rank,
         "language model, vision tower and projector are all frozen", "--freeze-projector",
         "Leave out one of --freeze-LM, --freeze-ViT and --freeze-projector");
  const int64_t tp = args.vision_tensor_model_parallel_size.value_or(args.tensor_model_parallel_size);
  reject(tp != 1 && tp != args.tensor_model_parallel_size,
         "the vision tower is divided over all tensor-parallel ranks, or each has it",
         "--vision-tensor-model-parallel-size", "Use 1, or leave it out");
}

VlmConfig vlm_config(const Arguments& args, int64_t tokenizer_size) {
  VlmConfig config{.language = gpt_config(args, tokenizer_size),
                   .vision = {},
                   .projector = {},
                   .projector_frozen = args.freeze_projector,
                   .image_token = args.image_token_id};
  GPTConfig& language = config.language;
  language.scope = "language_model";
  language.frozen = args.freeze_LM;
  config.vision = vision_config(args, language);
  config.projector = {.hidden = config.vision.features(),
                      .ffn_hidden = language.hidden,
                      .out = language.hidden,
                      .activation = activation_of(args.vision_projector_activation),
                      .bias = args.vision_projector_bias,
                      .fc1_init = weight_init(language),
                      .fc2_init = weight_init(language)};
  return config;
}

}  // namespace teratron
