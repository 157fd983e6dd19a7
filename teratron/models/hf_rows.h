// Names and options that the rows of several families' Hugging Face maps share.
#pragma once

#include "teratron/models/hf_map.h"

namespace teratron::hf_rows {

inline constexpr std::string_view hidden = "hidden_size", ffn = "ffn_hidden_size", vocab = "vocab_size";
inline constexpr std::string_view positions = "max_position_embeddings", heads = "num_attention_heads";
inline constexpr std::string_view untied = "untie_embeddings_and_output_weights";
inline const HfKeyOptions yes = {.must_be = true}, no = {.must_be = false};
inline const HfKeyOptions never = {.must_be = false, .export_only = true};
inline const HfTensorOptions biased = {.bias = {"add_bias_linear"}};

}  // namespace teratron::hf_rows
