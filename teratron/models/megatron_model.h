// A family's models in Megatron-LM's checkpoints: rows of names that megatron/ reads in both directions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace teratron {

/// Tensors whose names begin alike. A beginning that ends with '.', '_' or '/' stands for a weight and its
/// bias; any other is the whole name of one tensor. '#' is the number of an expert.
struct MegatronRow {
  std::string_view ours;  // as in Megatron-Core: "self_attention.linear_qkv."
  /// In the legacy models of core 0.4 to 0.7: read and written. '/' ends the key of a nested dict:
  /// "lm_head/norm." is the entry "norm.weight" of the dict "lm_head". Empty: they do not have it.
  std::string_view legacy = {};
  std::vector<std::string_view> other = {};  // in other releases: only read
  bool linear = false;                       // a parallel linear layer, which also saves an "_extra_state"
  std::string_view setting = {};             // is true if the model has the tensor
  /// In fused modules of Transformer Engine: read, and written where a layer has such a module.
  std::vector<std::string_view> fused = {};
  bool before_previous = false;  // Megatron-Core saves it before the row above
};

/// A stack of layers, whose rows follow "layers.N." in the order in which Megatron-LM saves them.
struct MegatronStack {
  std::string_view ours;                     // "decoder"
  std::string_view legacy;                   // the key of its dict: "encoder"
  std::vector<std::string_view> other = {};  // other keys: only read
  std::vector<MegatronRow> layer;
  std::string_view final_norm = "final_layernorm";  // of Megatron-Core
  bool stacks_layers = true;                        // torch_dist: layers that are alike are one tensor
};

struct MegatronModel {
  std::string family = {};  // set by megatron_models()
  std::vector<MegatronRow> embeddings;
  /// In the order of the forward pass. If there are two, each pipeline stage has layers of one of them.
  std::vector<MegatronStack> stacks;
  std::vector<MegatronRow> heads;  // on the last stage
  /// Layers "mtp.layers.N." that predict further tokens, on the last stage: what each has beside a layer of
  /// the only stack, "mtp_model_layer.". Empty: there are none.
  std::vector<MegatronRow> mtp = {};
  /// Parts of names that only checkpoints of this family have. Empty: it is what no other family claims.
  std::vector<std::string_view> signs = {};
  std::vector<std::string_view> arguments = {};  // saved arguments that only these have
  bool has_core = false;                         // its models can be written as Megatron-Core's, too
  std::string_view tokenizer = {};               // tokenizer_type of checkpoints that name none
};

/// The families that Megatron-LM has, in the order of families.def.
const std::vector<MegatronModel>& megatron_models();

}  // namespace teratron
