// A transformer layer: a list of branches of the residual stream, one after the other (Vaswani et al. 2017)
// or side by side (GPT-J, GPT-NeoX). A branch normalizes its input (pre-norm, Radford et al. 2019), its
// output (OLMo 2) or both (Gemma 2); several can share
// a normalized input (Falcon-H1). Usually there are self-attention, in a decoder cross attention, and a
// feed-forward network (transformer_branches.h). Any list will do: a layer of Mamba has one branch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/models/transformer/config.h"
#include "teratron/nn/cost/rank_sizes.h"
#include "teratron/nn/mixer.h"
#include "teratron/nn/norm.h"

namespace teratron {

/// Creates a part of a layer with the parameters of `scope` ("...layers.3.mlp"). `mesh`: for a part that is
/// sharded over other axes, too, as experts are.
using MixerFactory = std::function<std::unique_ptr<Mixer>(const Scope& scope, const TensorParallel& parallel,
                                                          const Mesh& mesh)>;
/// Creates Part(scope, options..., parallel).
template <typename Part, typename... Options>
MixerFactory mixer_factory(const Options&... options) {
  return [options...](const Scope& scope, const TensorParallel& parallel, const Mesh& /*mesh*/) {
    return std::make_unique<Part>(scope, options..., parallel);
  };
}
/// The operators of that part, named `name`.*.
using MixerOperators = std::function<std::vector<Operator>(const std::string& name, const RankSizes& sizes)>;

/// What a branch reads.
enum class BranchInput : uint8_t {
  stream,       // the residual stream after the branches before it
  same_stream,  // the residual stream that the branch before it reads
  same_normed   // what the norm of the branch before it gives; it has none
};

/// A branch, which makes h + dropout(b output_norm(part(a norm(h)))) of the residual stream h, with factors a
/// and b.
struct BranchOptions {
  // Names below the layer's; a norm without a name does not exist.
  std::string norm = {};  // "input_layernorm"
  std::string part = {};  // "self_attention"
  std::string output_norm = {};
  BranchInput input = BranchInput::stream;
  MixerFactory mixer = nullptr;
  MixerOperators operators = nullptr;  // its costs; null: the planner must not ask for them
  /// Number of its dropout among those of a layer (DropoutSite, layer_options.h), for each branch another.
  uint64_t dropout = 0;
  double input_multiplier = 1.0;   // a
  double output_multiplier = 1.0;  // b
};

class TransformerLayer : public Layer {
 public:
  /// Layer `layer` of its stack, with the branches of the configuration.
  TransformerLayer(const Scope& scope, const TransformerConfig& config, int64_t layer,
                   const TensorParallel& parallel, const Mesh& mesh);
  Hidden forward(const Hidden& x, const LayerContext& context, LayerState* state) override;
  /// LayerStates, one for each branch.
  std::unique_ptr<LayerState> make_state() const override;

 private:
  struct Branch {
    std::optional<Norm> norm, output_norm;
    std::unique_ptr<Mixer> mixer;
    uint64_t dropout_site;
    BranchInput input;
    double input_multiplier, output_multiplier;
  };
  /// What a branch reads, and what it is added to.
  struct Input {
    Normed normed;
    at::Tensor residual_SBH;
  };
  /// The branches from `first` to here read one residual stream.
  size_t end_of_group(size_t first) const;
  Input read(Branch& branch, const Hidden& h) const;
  Hidden add(Branch& branch, const Input& input, const LayerContext& context, LayerState* state) const;

  double hidden_dropout_;
  bool residual_after_norm_;
  at::ScalarType dtype_;  // of the weights
  TensorParallel parallel_;
  std::vector<Branch> branches_;
};

}  // namespace teratron
