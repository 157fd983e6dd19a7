#include "teratron/hf/neutral_keys.h"

#include <algorithm>

namespace teratron {

using nlohmann::json;

namespace {

// clang-format off
constexpr std::string_view neutral_keys[] = {
    // origin
    "model_type", "architectures", "auto_map", "custom_pipelines", "name_or_path", "_name_or_path",
    "_commit_hash", "transformers_version", "transformers.js_config", "unsloth_version", "unsloth_fixed",
    "is_llama_config", "license", "language", "finetuning_task", "created_by", "num_parameters", "model_name",
    "base_model", "prefix", "tokenizer_class", "task_specific_params", "bos_token", "eos_token", "pad_token",
    "unk_token", "model_max_length", "tokenizer_model_max_length", "tokenizer_padding_side",
    "max_sequence_length",
    // form and way of computing
    "torch_dtype", "dtype", "torchscript", "use_bfloat16", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "_attn_implementation_internal", "_experts_implementation",
    "_experts_implementation_internal", "_flash_attn_2_enabled", "use_flash_attention", "pretraining_tp",
    "chunk_size_feed_forward", "gradient_checkpointing", "use_cache", "output_past", "output_attentions",
    "output_hidden_states", "return_dict", "use_return_dict", "is_decoder", "tie_last_hidden_states",
    // training
    "initializer_range", "initializer_factor", "classifier_dropout", "num_labels", "id2label", "label2id",
    "problem_type",
    // generation: the defaults of transformers' GenerationConfig, and what older files have
    "_from_model_config", "assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids",
    "begin_suppress_tokens", "cache_implementation", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "guidance_scale", "length_penalty", "max_length", "max_new_tokens",
    "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "penalty_alpha", "remove_invalid_values", "renormalize_logits", "repetition_penalty",
    "return_dict_in_generate", "suppress_tokens", "target_lookbehind", "temperature", "top_k", "top_p",
    "typical_p"};
// clang-format on

// Full attention in every layer is what a model type without layer_types has.
bool is_full_attention(const json& layers) {
  return layers.is_array() &&
         std::ranges::all_of(layers, [](const json& layer) { return layer == "full_attention"; });
}

// What WeightFiles::dequantize() reads.
bool is_block_scaled(const json& quantization) {
  return quantization.is_object() && quantization.value("quant_method", json()) == "fp8" &&
         quantization.value("weight_block_size", json()) == json({128, 128});
}

}  // namespace

bool has_value(const json& value) {
  if (value.is_null() || value == false) return false;
  return value.is_number() ? value != 0 : value != "" && !value.empty();
}

bool is_neutral_key(std::string_view key, const json& value) {
  if (key == "quantization_config" && is_block_scaled(value)) return true;
  if (key == "is_causal") return value.is_null() || value == true;
  if (key == "layer_types" && has_value(value)) return is_full_attention(value);
  return !has_value(value) || key.ends_with("_token_id") ||
         std::ranges::find(neutral_keys, key) != std::end(neutral_keys);
}

}  // namespace teratron
