// The model families of Hugging Face as tables: keys of config.json <-> settings of Megatron-LM, and modules
// <-> modules. config.cpp and name_map.cpp read every row in both directions; a new family is one more
// HfFamily.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace teratron {

/// One key of config.json and the setting it stands for.
struct HfKey {
  std::string_view key;      // none: import sets the setting to `otherwise`
  std::string_view setting;  // none: import accepts only `otherwise`
  /// Value where config.json lacks the key; also its type (an integer: a size from 1 to 2^31). null: a
  /// required size.
  nlohmann::json otherwise = nullptr;
  bool negated = false;
  bool export_only = false;
  nlohmann::json values = nullptr;  // of a key with names for values: object, name -> value of the setting
  int64_t (*derived)(const nlohmann::json& settings) = nullptr;  // instead of `otherwise`
};

/// A module: its weight, and its bias where the model has one.
struct HfModule {
  std::string_view name;
  std::vector<std::string_view> sources;  // names there; concatenated along the rows
  /// Settings, or products of settings ("a*b"), that are the size of each source. Rows "qkv": the projections
  /// of queries, keys and values, each on its own or as one source that holds them in this order.
  std::string_view rows;
  std::string_view columns;  // none: a vector
  bool bias = false;         // present with add_bias_linear, that of QKV also with add_qkv_bias
  bool transposed = false;   // Conv1D: the weight is [in, out] there
  std::string_view when;     // the setting that adds the module
};

enum class HfWindows : uint8_t { none, all_layers, per_layer };

struct HfFamily {
  std::string_view model_type;
  std::string_view architecture;  // class of the causal language model
  std::string_view prefix;        // its name of the base model, in which all modules but the output layer are
  std::string_view layers;        // name of the list of layers
  std::vector<HfKey> keys;
  std::vector<HfModule> embeddings;
  std::vector<HfModule> layer;  // names within one layer
  HfModule final_norm;
  nlohmann::json fixed;  // settings that every model of the family has; export recognizes it by them
  HfWindows windows = HfWindows::none;
  int64_t end_token = -1;  // transformers' default, which a smaller vocabulary does not have
};

/// More specific families first.
const std::vector<HfFamily>& hf_families();

}  // namespace teratron
