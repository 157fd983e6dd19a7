// Configuration of a stack of transformer layers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "teratron/kernels/norm/norm.h"
#include "teratron/kernels/pointwise/activation.h"
#include "teratron/kernels/pointwise/glu_input.h"
#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/attention/context_parallel/context_parallel.h"
#include "teratron/nn/attention/relative_position.h"
#include "teratron/nn/attention/rope.h"
#include "teratron/nn/moe/moe_layer.h"
#include "teratron/nn/norm.h"

namespace teratron {

struct Arguments;
struct BranchOptions;
struct TransformerConfig;

/// The branches of layer `layer`, which counts from 0 through the whole stack (transformer_branches.h).
using LayerBranches =
    std::function<std::vector<BranchOptions>(const TransformerConfig& config, int64_t layer)>;

enum class PositionEmbedding : uint8_t { learned_absolute, rope, alibi, relative, none };

/// Activation recomputation (nn/recompute.h).
struct RecomputeConfig {
  enum class Granularity : uint8_t { none, attention_core, layers };
  enum class Method : uint8_t {
    uniform,  // all layers, in units of `layers` consecutive ones; only the input of a unit is saved
    block     // the first `layers` of the stage, one by one; the others save everything
  };
  Granularity granularity = Granularity::none;
  Method method = Method::uniform;
  int64_t layers = 1;
  bool distribute_inputs = false;  // each tensor-parallel rank saves its shard of a unit's input
};

/// Offloading of saved activations to host memory (nn/offload).
struct OffloadConfig {
  int64_t layers = 0;                    // the first ones of each pipeline stage, at most all
  int64_t min_bytes = int64_t{1} << 20;  // smaller tensors stay on the device
};

/// Experts instead of an MLP (nn/moe).
struct ExpertsConfig {
  std::vector<int64_t> layers;  // 1: has experts, 0: an MLP; empty: no layer has experts
  /// Options of these layers; those that follow from the layer or from other sizes of the model are unset.
  MoeOptions options;

  bool in(int64_t layer) const { return !layers.empty() && layers.at(static_cast<size_t>(layer)) != 0; }
  /// Layers with experts before `layer`.
  int64_t before(int64_t layer) const;
  int64_t count() const { return before(static_cast<int64_t>(layers.size())); }
  /// The router draws random numbers.
  bool random() const { return options.router.jitter > 0.0 || options.router.force_balance; }
};

/// Multi-head latent attention in place of self-attention (nn/mla).
struct LatentConfig {
  int64_t query_rank = 0;  // 0: none
  int64_t kv_rank = 0;
  int64_t rope_channels = 0;  // of kv_channels, the last ones
  int64_t v_channels = 0;
  std::optional<NormOptions> norm = {};
};

/// An encoder or a decoder.
struct TransformerConfig {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t ffn_hidden = 0;
  int64_t heads = 0;             // 0: no layer has attention
  int64_t query_groups = 0;      // key/value heads; = heads without grouped queries
  int64_t kv_channels = 0;       // width of a head
  Mask mask = Mask::causal;      // of self-attention
  bool cross_attention = false;  // to the output of an encoder (LayerContext)
  PositionEmbedding position = PositionEmbedding::learned_absolute;
  RotaryConfig rope;
  std::optional<RotaryConfig> local_rope;  // of layers with a window
  std::vector<int64_t> no_rope;            // 1: the layer has no rotation; empty: all have
  RelativePositions relative;
  NormOptions norm;
  NormWeights norm_weights = NormWeights::all;
  Activation activation = Activation::gelu;
  GluVariant glu;  // of SwiGLU
  std::optional<LatentConfig> latent;
  bool linear_bias = true;
  bool qkv_bias = false;        // bias of the QKV projection alone
  bool attention_bias = false;  // biases of self-attention alone
  bool qk_norm = false;
  bool attention_output_gate = false;
  bool qk_norm_all_heads = false;    // over all heads together; RMS norm
  bool qk_norm_own_weights = false;  // of each head; no biases
  bool qk_l2_norm = false;           // RMS norms without weights, in layers with a rotation
  bool residual_after_norm = false;  // the residual branches off after the norm
  bool norm_outputs = false;         // of attention and MLP, instead of their inputs
  bool sandwich_norms = false;       // of their outputs besides their inputs (Gemma 2)
  bool parallel_residual = false;    // attention and MLP read the same residual stream
  bool one_parallel_norm = false;    // and the same norm of it
  bool fp32_residual = false;        // the residual stream is fp32 for any weight dtype
  bool query_key_layer_scaling = false;
  double residual_multiplier = 1.0;  // of what is added to the residual stream
  double gate_multiplier = 1.0;      // of the gates of MLPs
  double softmax_scale = 0.0;        // of attention scores; 0: 1 / sqrt(kv_channels)
  double score_softcap = 0.0;        // see AttentionRequest
  SoftmaxType softmax = SoftmaxType::vanilla;
  /// Sliding window of each layer, 0: none (see AttentionRequest); empty: none.
  std::vector<int64_t> windows;
  int64_t chunk = 0;                 // see AttentionRequest, in layers with a rotation
  AttentionTemperature temperature;  // in layers without a rotation
  /// Communication of each layer's attention under context parallelism; empty: p2p.
  std::vector<ContextParallelComm> context_parallel_comm;
  double init_std = 0.02;
  bool xavier_init = false;  // for all matrices, instead of init_std
  // The initialisation of outputs is scaled by the additions to the residual stream: those of a layer times
  // the number of layers, init_layers where it is not 0.
  int64_t init_layers = 0;
  int64_t additions_per_layer = 2;
  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;
  double adapter_dropout = 0.0;  // of the inputs of LoRA adapters
  uint64_t dropout_seed = 1234;
  uint64_t first_dropout_site =
      0;  // of the stack, this one its embedding's; stacks of a model differ by 2^32
  RecomputeConfig recompute;
  OffloadConfig offload;
  ExpertsConfig experts;
  /// Layers of an FP8 model that stay in bf16.
  int64_t bf16_layers_at_start = 0;
  int64_t bf16_layers_at_end = 0;
  /// Null: the usual ones, transformer_branches().
  LayerBranches branches = nullptr;
  std::string final_norm = "final_layernorm";  // name of the norm after the stack
};

/// From the command-line arguments.
TransformerConfig transformer_config(const Arguments& args);
/// The tokenizer's size, or --vocab-size if larger: published models may have more embedding rows than their
/// tokenizer has tokens.
int64_t model_vocabulary(const Arguments& args, int64_t tokenizer_size);

/// A language model with one stack of layers.
struct LanguageModelConfig : TransformerConfig {
  int64_t vocabulary = 0;         // logical size
  int64_t padded_vocabulary = 0;  // rows of the embedding
  int64_t max_positions = 0;
  bool tied_embeddings = true;
};

/// From the command-line arguments. The logical vocabulary is model_vocabulary().
LanguageModelConfig language_model_config(const Arguments& args, int64_t tokenizer_size);

/// Initialises every matrix whose output is not added to the residual stream.
inline Init weight_init(const TransformerConfig& config) {
  return config.xavier_init ? Init::xavier() : Init::normal(config.init_std);
}

}  // namespace teratron
