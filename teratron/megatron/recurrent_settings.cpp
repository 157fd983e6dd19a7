// Layers with recurrences in Megatron-LM's checkpoints (settings.h).
#include <algorithm>

#include "teratron/base/config/layer_pattern.h"
#include "teratron/base/error.h"
#include "teratron/megatron/saved_args.h"
#include "teratron/megatron/settings.h"
#include "teratron/models/mamba/hybrid_pattern.h"

namespace teratron {

using nlohmann::json;

namespace {

class RecurrentLayers {
 public:
  RecurrentLayers(const MegatronSource& source, json& settings)
      : source_(source), settings_(settings), stack_(source.model->stacks[0].ours) {
    while (has_layer(std::ssize(kinds_))) kinds_ += kind_of(layer(std::ssize(kinds_)));
  }

  void take() {
    if (source_.model->family == "mamba") {
      check_pattern();
      settings_["hybrid_layer_pattern"] = kinds_;
    } else if (has(hybrid::delta)) {
      settings_["experimental_attention_variant"] = "gdn";
      std::vector<int64_t> linear;
      for (const char kind : kinds_) linear.push_back(kind == hybrid::delta ? 1 : 0);
      settings_["linear_attention_freq"] = to_layer_pattern(linear);
    }
    if (has(hybrid::mamba)) take_mamba(layer(kinds_.find(hybrid::mamba)) + "mixer.");
    if (has(hybrid::delta)) take_delta(layer(kinds_.find(hybrid::delta)) + "self_attention.");
  }

 private:
  bool has(char kind) const { return kinds_.find(kind) != std::string::npos; }
  bool has_tensor(const std::string& name) const { return source_.shapes.contains(name); }
  std::string layer(size_t number) const { return fmt::format("{}.layers.{}.", stack_, number); }
  bool has_layer(int64_t number) const {
    const std::string prefix = layer(static_cast<size_t>(number));
    const auto found = source_.shapes.lower_bound(prefix);
    return found != source_.shapes.end() && found->first.starts_with(prefix);
  }
  char kind_of(const std::string& prefix) const {
    constexpr std::pair<const char*, char> signs[] = {{"mixer.in_proj.weight", hybrid::mamba},
                                                      {"self_attention.in_proj.weight", hybrid::delta},
                                                      {"self_attention.linear_qkv.weight", hybrid::attention},
                                                      {"mlp.router.weight", hybrid::experts},
                                                      {"mlp.linear_fc1.weight", hybrid::mlp}};
    for (const auto& [tensor, kind] : signs) {
      if (has_tensor(prefix + tensor)) return kind;
    }
    refuse(fmt::format("layer \"{}\" is of no known kind", prefix), whole_models_only());
  }
  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const {
    throw checkpoint_error({.what = what, .where = source_.where, .fix = fix});
  }

  // The bars of a saved pattern divide it into pipeline stages.
  void check_pattern() const {
    for (const char* const name : {"hybrid_layer_pattern", "hybrid_override_pattern"}) {
      const json saved = saved_arg(source_.args, name);
      if (!saved.is_string()) continue;
      std::string pattern = saved;
      std::erase(pattern, '|');
      if (pattern != kinds_)
        refuse(fmt::format("{} is {} in the arguments, but the tensors show {}", name, printable(pattern),
                           kinds_),
               whole_models_only());
    }
  }

  int64_t size(const std::string& name, size_t dimension) const {
    const auto found = source_.shapes.find(name);
    if (found == source_.shapes.end() || dimension >= found->second.size())
      refuse(fmt::format("tensor \"{}\" is missing", name), whole_models_only());
    return found->second[dimension];
  }
  // Saved, given, or Megatron-LM's default.
  int64_t setting(const char* name, int64_t otherwise) const {
    const json value = settings_.value(name, json());
    return value.is_number_integer() ? value.get<int64_t>() : otherwise;
  }
  void expect(const std::string& name, int64_t rows, const char* flags) const {
    if (size(name, 0) != rows)
      refuse(
          fmt::format("tensor \"{}\" has {} rows, but {} follow from the sizes", name, size(name, 0), rows),
          fmt::format("Correct {}", flags));
  }

  void take_mamba(const std::string& mixer) {
    const int64_t heads = size(mixer + "A_log", 0), d = size(mixer + "out_proj.weight", 1);
    const int64_t groups = setting("mamba_num_groups", 8), state = setting("mamba_state_dim", 128);
    const char* const flags = "--mamba-num-groups and --mamba-state-dim";
    if (heads < 1 || d % heads != 0)
      refuse(fmt::format("{} channels of {} heads", d, heads), whole_models_only());
    expect(mixer + "conv1d.weight", d + 2 * groups * state, flags);
    expect(mixer + "in_proj.weight", 2 * d + 2 * groups * state + heads, flags);
    settings_.update({{"mamba_num_heads", heads},
                      {"mamba_head_dim", d / heads},
                      {"mamba_num_groups", groups},
                      {"mamba_state_dim", state},
                      {"mamba_conv_kernel", size(mixer + "conv1d.weight", 2)},
                      {"mamba_conv_bias", has_tensor(mixer + "conv1d.bias")},
                      {"mamba_proj_bias", has_tensor(mixer + "in_proj.bias")}});
    if (!has_tensor(mixer + "norm.weight")) settings_["mamba_gate"] = "alone";
  }

  void take_delta(const std::string& mixer) {
    const int64_t heads = size(mixer + "A_log", 0), V = size(mixer + "out_norm.weight", 0);
    const int64_t key_heads = setting("linear_num_key_heads", 16), K = setting("linear_key_head_dim", 128);
    const char* const flags = "--linear-num-key-heads and --linear-key-head-dim";
    expect(mixer + "conv1d.weight", 2 * key_heads * K + heads * V, flags);
    expect(mixer + "in_proj.weight", 2 * key_heads * K + 2 * heads * V + 2 * heads, flags);
    settings_.update({{"linear_num_key_heads", key_heads},
                      {"linear_key_head_dim", K},
                      {"linear_num_value_heads", heads},
                      {"linear_value_head_dim", V},
                      {"linear_conv_kernel_dim", size(mixer + "conv1d.weight", 2)}});
  }

  const MegatronSource& source_;
  json& settings_;
  std::string stack_;
  std::string kinds_;  // a letter for each layer (hybrid_pattern.h)
};

}  // namespace

void take_recurrent_layers(const MegatronSource& source, json& settings) {
  RecurrentLayers(source, settings).take();
}

}  // namespace teratron
