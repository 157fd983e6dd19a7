// Keys of config.json that differ between layers: windows, rotations. HfKeyOptions::read and write.
#pragma once

#include <string_view>

#include "teratron/models/hf_rows.h"

namespace teratron::gpt_hf_keys {

/// Layers with a window by layer_types; where it is missing, all but every `full_every`-th, or that of
/// sliding_window_pattern. Windows stay even where a window hides no position.
void read_window_types(HfConfig& config, int64_t full_every);
template <int64_t full_every>
void read_window_types(std::string_view /*key*/, HfConfig& config) {
  read_window_types(config, full_every);
}
void write_window_types(std::string_view key, HfConfig& config);

/// Rotations of full_attention, which may be scaled, and of sliding_attention, which are not: by
/// rope_parameters, or in older files by rope_theta, rope_scaling and `local`.
struct RopeTypes {
  double base = 1e4;            // where the file has none
  std::string_view local = {};  // key of the base of sliding_attention; empty: rope_theta
  double local_base = 1e4;
};
void read_rope_types(HfConfig& config, const RopeTypes& types);
void write_rope_types(HfConfig& config, const RopeTypes& types);

/// no_rope_layers, 1 for each layer with a rotation; where it is missing, all but every
/// no_rope_layer_interval-th have one.
void read_no_rope_layers(std::string_view key, HfConfig& config);
void write_no_rope_layers(std::string_view key, HfConfig& config);

/// null for no cap: transformers would divide by 0.
void write_softcap(std::string_view key, std::string_view setting, HfConfig& config);

/// query_pre_attn_scalar, 1 / scale^2.
void read_query_scalar(std::string_view key, HfConfig& config);
void write_query_scalar(std::string_view key, HfConfig& config);

/// 1 for each layer with a window.
std::vector<int64_t> window_layers(HfConfig& config);

}  // namespace teratron::gpt_hf_keys
