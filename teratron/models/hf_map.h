// Hugging Face checkpoints as rows, each read in both directions by hf/weight_map.h: keys of config.json and
// Megatron-LM's settings, tensors and Megatron-Core's. Each family (families.def) has its model_types in its
// folder (models/gpt/gpt_formats.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace teratron {

/// A sum, product or quotient of settings and numbers: "4*hidden_size". 0 if a setting is null or the
/// quotient not whole; factors are at most 2^60, which no file holds, so that a sum cannot overflow. A list
/// counts its elements. "a:b" is a quotient that is rounded down, and binds more tightly than the others.
int64_t hf_size(const nlohmann::json& settings, std::string_view expression);

/// A config.json and settings, while one is made from the other.
struct HfConfig {
  nlohmann::json keys = nlohmann::json::object();  // of the object that the row's key lies in
  std::string object = {};                         // where that is: "text_config."; the outermost: empty
  nlohmann::json settings = nlohmann::json::object();
  std::vector<std::string> problems = {};  // what the other side does not have
  std::vector<std::string> notices = {};   // what the other side has only nearly

  /// Whether the key is there and not null.
  bool has(std::string_view key) const { return keys.contains(key) && !keys[key].is_null(); }
  /// `otherwise` where the key is missing or, which is a problem, not of its type (see HfKeyOptions).
  nlohmann::json get(std::string_view key, const nlohmann::json& otherwise);
  int64_t size(std::string_view expression) const { return hf_size(settings, expression); }
  bool is_set(std::string_view setting) const { return settings.at(setting); }
  void unsupported(std::string_view key);
  template <typename... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
};

struct HfKeyOptions {
  /// Value where neither config.json nor HfFamily::defaults has the key; also its type (an integer: a size
  /// from 1 to 2^31). null: a required size.
  nlohmann::json otherwise = nullptr;
  std::string_view derived = {};     // `otherwise` from settings above: "hidden_size/num_attention_heads"
  nlohmann::json must_be = nullptr;  // the only value of the key at import, and of the setting at export
  nlohmann::json values = nullptr;   // of a key with names for values: object, name -> value of the setting
  bool negate = false;
  bool export_only = false;
  std::string_view rows_of = {};  // the checkpoint's value of the setting is the length of this tensor
  /// Replace all of this in one direction; `key` is the row's.
  void (*read)(std::string_view key, HfConfig& config) = nullptr;
  void (*write)(std::string_view key, HfConfig& config) = nullptr;
};

/// One key of config.json and the setting it stands for.
struct HfKey {
  /// "vision_config.hidden_size" lies in an inner object, whose keys alone `read` and `write` then see.
  /// Empty: import sets the setting nevertheless.
  std::string_view key;
  std::string_view setting;  // none: the key is only checked
  HfKeyOptions options = {};
};

enum class HfRule : uint8_t {
  same,
  transpose,    // Conv1D, [in, out] there
  concat,       // the rows of all sources, one after another
  keys,         // as many rows as the keys of all heads; `shape` has those of the queries
  key_heads,    // as many rows as heads of keys; `shape` has those of the queries
  qkv_grouped,  // sources Q, K and V, or one of all; ours: for each query group its Q heads, K and V
  kv_grouped,   // sources K and V, of as many heads as queries; ours: for each head its K and V
  qkv_fused,    // one source [in, Q|K|V] (Conv1D); ours as qkv_grouped
  qkv_gated,    // Q has each head's queries and its gates; ours: for each group queries, gates, K and V
  delta_heads,  // sources q|k|v|z and b|a for each head of keys; ours q|k|v|z|b|a of all heads
  stacked,      // one source [experts, rows, columns] of ours of all experts
  alternating,  // one source whose columns (rows, if it has one dimension) are gates and ups in turn
};

/// What each layer consists of: {{"attention", "mlp"}, {"mamba", "experts"}}. The names are the family's own.
using HfLayerKinds = std::vector<std::vector<std::string_view>>;

struct HfTensorOptions {
  std::vector<std::string_view> when = {};    // the settings any of which adds the tensor
  std::vector<std::string_view> unless = {};  // those that take it away
  std::vector<std::string_view> bias = {};    // with any of these settings, the .bias of a .weight follows it
  std::vector<std::string_view> copies = {};  // whole names under which files may repeat the source
  std::string_view in = {};                   // the kind of layers that have it; empty: all
  /// QKV: the setting with the number of heads, each with its keys and values; empty: the language model's.
  std::string_view heads = {};
  bool biased = false;                      // the .bias of a .weight follows it in all models
  std::vector<std::string_view> rows = {};  // of each source of a concatenation; empty: all are alike
  bool any_cut = false;                     // files may cut the concatenated rows elsewhere
  bool f32 = false;                         // in every export
  bool one_row = false;                     // the source is [1, ...]
  /// Files repeat the tensor of this whole name of ours here: compared where it is, and always written.
  bool repeats = false;
};

/// A '#' in the names is an expert: the row stands for one tensor each.
struct HfTensorRow {
  std::string_view name;
  HfRule rule = HfRule::same;
  std::vector<std::string_view> sources;
  /// The shape of each source, [out, in]: settings, or products of settings. QKV: the shape of Q.
  std::vector<std::string_view> shape;
  HfTensorOptions options = {};
};

enum class HfLayers : uint8_t { all, but_last, last };

/// Rows with common prefixes. A '*' in both is a layer: all rows of layer 0, then of layer 1, ... "*+1" is
/// the layer after it, "2*" and "2*+1" are the two layers that one of theirs is.
struct HfTensorGroup {
  std::string_view ours;
  std::string_view theirs;
  std::vector<HfTensorRow> rows;
  std::string_view layers = {};  // the setting that counts them
  HfLayers span = HfLayers::all;
  /// Their layers are numbered on from this setting; each is of the kind of the last one before them.
  std::string_view after = {};
};

/// A tensor of all experts of a layer, [experts, rows, columns] or [experts, rows], and the tensors of one
/// expert ("#") whose rows it holds one after another, in equal numbers.
struct HfFusedExperts {
  std::string_view end;  // of its name
  std::vector<std::string_view> parts;
  bool written = false;  // export writes it, too, in place of its one part
};

/// A model within another: an object of config.json with a model_type.
struct HfPart {
  std::string_view object;      // "text_config"
  std::string_view model_type;  // of the object; config.json with another one is of another HfFamily
  bool assumed = false;         // it is that of an object that names none, too
  std::vector<HfKey> keys;
  nlohmann::json defaults = nlohmann::json::object();  // as of HfFamily, like the next two
  std::vector<std::pair<std::string_view, std::string_view>> aliases = {};
  std::vector<std::string_view> other_keys = {};
  nlohmann::json missing = nullptr;  // the object where config.json has none; null: it must have one
};

struct HfFamily {
  std::string_view model_type;
  std::string architecture;  // class of the model with its head
  std::string_view prefix;   // of the base model's tensors, absent in files of the bare base model
  std::vector<HfKey> keys;
  std::vector<HfTensorGroup> tensors;  // in the order of the forward pass
  /// What the configuration class of transformers has where config.json lacks a key.
  nlohmann::json defaults = nlohmann::json::object();
  /// Its attribute_map: other names of keys. Where both are there, the other name counts.
  std::vector<std::pair<std::string_view, std::string_view>> aliases = {};
  /// Keys without a row: the functions of rows read them, or they change nothing.
  std::vector<std::string_view> other_keys = {};
  std::vector<std::string_view> buffers = {};  // ends of names that hold no parameters: masks, rotary tables
  std::vector<std::string_view> unread = {};   // beginnings of names of what models here do not have
  std::vector<std::pair<std::string_view, std::string_view>> old_ends = {};    // ends of names: new, old
  std::vector<std::pair<std::string_view, std::string_view>> old_begins = {};  // beginnings of names
  std::vector<HfFusedExperts> fused_experts = {};  // as transformers 5 holds them, in place of their parts
  /// The kinds of so many layers, by the settings; null: rows have no `in`. A pattern that does not fit is a
  /// problem of `config`.
  HfLayerKinds (*layer_kinds)(HfConfig& config, int64_t layers) = nullptr;
  /// A file with this tensor has an untied output layer, unless it equals the word embeddings, and a file
  /// without it a tied one, whatever config.json says. Empty: config.json is right.
  std::string_view unties = {};
  /// Files with such a tensor in the layers after the last have layers that predict further tokens, whatever
  /// config.json says. Empty: the model type has none.
  std::string_view mtp_sign = {};
  /// Beginnings of our names of heads, which files of the base model or of another head lack as a whole. A
  /// finetuning begins them anew.
  std::vector<std::string_view> heads = {};
  /// The object of config.json that has the keys: the text model of one with pictures. Such files are only
  /// read. Empty: the outermost.
  std::string_view object = {};
  std::vector<HfPart> parts = {};   // read and written before the keys of the whole
  std::string_view peft_task = {};  // task_type of PEFT's adapters; empty: null
  bool has_decoder_start = false;   // config.json names the token that decoders begin with
  std::string family = {};          // of families.def, or its classifier; set by hf_families()
};

/// The model types of all families. Export takes the first of the family that has the settings.
const std::vector<HfFamily>& hf_families();

}  // namespace teratron
