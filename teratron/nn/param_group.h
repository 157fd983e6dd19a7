// How a parameter's optimizer step differs from the run's settings (Megatron-LM's param_groups).
//
// Each layer states the group of its parameters. The optimizer lists the distinct groups, at most 256. A new
// kind of group is a new value, here or where the parameter is created.
#pragma once

namespace teratron {

struct ParamGroup {
  double lr_mult = 1.0;            // factor of the learning rate
  double weight_decay_mult = 1.0;  // factor of the weight decay
  bool decoupled = false;          // has the learning rate of --decoupled-lr, if given

  bool operator==(const ParamGroup&) const = default;

  static const ParamGroup standard;
  static const ParamGroup no_weight_decay;  // biases and norms
  static const ParamGroup decoupled_lr;     // word embeddings and output layer
};

inline constexpr ParamGroup ParamGroup::standard{};
inline constexpr ParamGroup ParamGroup::no_weight_decay{.weight_decay_mult = 0.0};
inline constexpr ParamGroup ParamGroup::decoupled_lr{.decoupled = true};

}  // namespace teratron
