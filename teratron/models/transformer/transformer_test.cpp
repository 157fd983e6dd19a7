// An encoder and a decoder against plain attention in fp64, in each layout: output, gradients, generation.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/models/transformer/transformer_branches.h"

namespace teratron {
namespace {

constexpr int64_t samples = 3, source_length = 6, target_length = 8;
constexpr uint64_t decoder_sites = uint64_t{1} << 32;

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

// A feed-forward network and a layer of plain tensor operations, as a program would write them.
at::Tensor gated(const at::Tensor& x, const at::Tensor& gate) {
  return x * (x * gate).sigmoid();
}

class GatedFeedForward : public FeedForward {
 public:
  GatedFeedForward(const Scope& scope, int64_t hidden, const TensorParallel& parallel)
      : gate_(scope.parameter("gate",
                              {.shard = Shard::replicated({hidden}), .grad_sum = parallel.grad_sum()})) {}
  at::Tensor forward(const at::Tensor& x_SBH, const LayerContext&) override {
    return gated(x_SBH, autograd_tensor(gate_));
  }

 private:
  Parameter& gate_;
};

class GatedLayer : public Layer {
 public:
  GatedLayer(const Scope& scope, int64_t hidden, const TensorParallel& parallel)
      : feed_forward_(scope, hidden, parallel) {}
  Hidden forward(const Hidden& x, const LayerContext& context, LayerState*) override {
    const at::Tensor x_SBH = apply_bias_grad(x);
    return {x_SBH + feed_forward_.forward(x_SBH, context)};
  }

 private:
  GatedFeedForward feed_forward_;
};

struct Case {
  std::string name;
  int64_t tp = 1;
  bool sequence_parallel = false;
  bool padding = false;  // samples of several lengths
  bool plain = false;    // encoder layers of plain tensors
  bool post_layernorm_residual = false;
  bool output_norms = false;  // besides those of inputs
  double dropout = 0.0;
  RecomputeConfig recompute = {};
};

LayerBranches branches_of_case(const Case& c) {
  return [c](const TransformerConfig& config, int64_t layer) {
    std::vector<BranchOptions> branches = transformer_branches(config, layer);
    for (BranchOptions& branch : branches) {
      if (c.output_norms) branch.output_norm = "post_" + branch.part + "_layernorm";
    }
    if (c.plain && !config.cross_attention)
      branches.back().mixer = mixer_factory<GatedFeedForward>(config.hidden);
    return branches;
  };
}

TransformerConfig encoder_config(const Case& c) {
  return {.layers = 2,
          .hidden = 16,
          .ffn_hidden = 24,
          .heads = 4,
          .query_groups = 2,
          .kv_channels = 2,
          .mask = Mask::full,
          .activation = Activation::swiglu,
          .residual_after_norm = c.post_layernorm_residual,
          .hidden_dropout = c.dropout,
          .attention_dropout = c.dropout,
          .recompute = c.recompute,
          .branches = branches_of_case(c)};
}

TransformerConfig decoder_config(const Case& c) {
  TransformerConfig config = encoder_config(c);
  config.mask = Mask::causal;
  config.cross_attention = true;
  config.first_dropout_site = decoder_sites;
  return config;
}

struct EncoderDecoder {
  EncoderDecoder(ParameterSet& parameters, const Case& c, const TensorParallel& parallel_)
      : parallel(parallel_),
        encoder(Scope(parameters) / "encoder" / "layers", encoder_config(c), {0, 2}, parallel_,
                [&](const Scope& scope, int64_t layer) { return encoder_layer(scope, c, layer); }),
        decoder(Scope(parameters) / "decoder" / "layers", decoder_config(c), {0, 2}, parallel_,
                transformer_layers(decoder_config(c), parallel_, {})) {}

  at::Tensor encode(const at::Tensor& source_SBH, const LayerContext& context) {
    return apply_bias_grad(encoder.forward(source_SBH, context, nullptr));
  }
  at::Tensor decode(const at::Tensor& target_SBH, const LayerContext& context, LayerStates* states) {
    return apply_bias_grad(decoder.forward(target_SBH, context, states));
  }
  std::unique_ptr<Layer> encoder_layer(const Scope& scope, const Case& c, int64_t layer) const {
    const TransformerConfig config = encoder_config(c);
    if (c.plain && layer == 1) return std::make_unique<GatedLayer>(scope, config.hidden, parallel);
    return std::make_unique<TransformerLayer>(scope, config, layer, parallel, Mesh());
  }

  TensorParallel parallel;
  LayerStack encoder;
  LayerStack decoder;
};

// Sources of 6, 4 and 5 tokens; padding forms segments, to which no query of the decoder belongs.
constexpr std::array<int64_t, samples> lengths{6, 4, 5};
at::Tensor cu_seqlens_source() {
  return at::tensor({0, 6, 10, 12, 17, 18}, at::kInt);
}
at::Tensor cu_seqlens_target(int64_t length) {
  return at::tensor({0, 1, 2, 2, 3, 3}, at::kInt) * length;
}

LayerContext context_of(const Case& c, int64_t length) {
  return {.rows = {at::arange(length, at::kLong), length},
          .dropout_seed = 7,
          .sample_ids_B = at::tensor({5, 6, 9}, at::kLong),
          .dropout_row_ids = std::make_shared<DropoutRowIds>(),
          .training = c.dropout > 0.0};
}

LayerContext source_context(const Case& c) {
  LayerContext context = context_of(c, source_length);
  if (c.padding) context.segments = {cu_seqlens_source()};
  return context;
}

LayerContext target_context(const Case& c, const at::Tensor& memory_SBH) {
  LayerContext context = context_of(c, target_length);
  context.memory.hidden_SBH = memory_SBH;
  if (c.padding) context.memory.segments = {cu_seqlens_target(target_length), cu_seqlens_source()};
  return context;
}

// The model once more in plain ATen, with the parameters' names.
class Reference {
 public:
  Reference(Tensors weights, const Case& c) : weights_(std::move(weights)), case_(c) {}

  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) const {
    at::Tensor padding = at::zeros({samples, source_length}, at::kBool);
    for (int64_t b = 0; case_.padding && b < samples; ++b)
      padding[b].narrow(0, lengths[b], source_length - lengths[b]).fill_(true);
    // Real tokens see real ones, padding sees padding.
    const at::Tensor source_hidden = padding.unsqueeze(1) != padding.unsqueeze(2);
    at::Tensor memory = source;
    for (const char* layer : {"encoder.layers.0.", "encoder.layers.1."})
      memory = encoder_layer(layer, memory, source_hidden);
    const at::Tensor future = at::ones({1, target_length, target_length}, at::kBool).triu(1);
    at::Tensor y = target;
    for (const char* layer : {"decoder.layers.0.", "decoder.layers.1."})
      y = mlp(layer, cross_attention(layer, self_attention(layer, y, future), memory, padding.unsqueeze(1)));
    return y;
  }

 private:
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, weights_.at(name + ".weight"), weights_.at(name + ".bias"));
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    return at::layer_norm(x, {x.size(-1)}, weights_.at(name + ".weight"), weights_.at(name + ".bias"), 1e-5);
  }
  // y of the part is added.
  at::Tensor add(const std::string& part, const at::Tensor& x, const at::Tensor& normed,
                 const at::Tensor& y) const {
    const std::string layer = part.substr(0, part.rfind('.') + 1), name = part.substr(layer.size());
    const at::Tensor output = case_.output_norms ? norm(layer + "post_" + name + "_layernorm", y) : y;
    return (case_.post_layernorm_residual ? normed : x) + output;
  }

  // q [S, B, 4, 2], k and v [S, B, 2, 2]; hidden keys [B, Sq or 1, Sk].
  static at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& hidden) {
    const auto heads = [](const at::Tensor& x) {
      return x.repeat_interleave(4 / x.size(2), 2).permute({1, 2, 0, 3});
    };
    const at::Tensor scores = at::matmul(heads(q), heads(k).transpose(2, 3)) / std::sqrt(2.0);
    const at::Tensor weights = scores.masked_fill(hidden.unsqueeze(1), -INFINITY).softmax(-1);
    return at::matmul(weights, heads(v)).permute({2, 0, 1, 3}).flatten(2);
  }

  at::Tensor self_attention(const std::string& layer, const at::Tensor& x, const at::Tensor& hidden) const {
    const at::Tensor normed = norm(layer + "input_layernorm", x);
    // Per group two queries, a key and a value.
    const at::Tensor qkv = linear(layer + "self_attention.linear_qkv", normed).unflatten(-1, {2, 4, 2});
    const at::Tensor y =
        attend(qkv.narrow(3, 0, 2).flatten(2, 3), qkv.select(3, 2), qkv.select(3, 3), hidden);
    return add(layer + "self_attention", x, normed, linear(layer + "self_attention.linear_proj", y));
  }

  at::Tensor cross_attention(const std::string& layer, const at::Tensor& x, const at::Tensor& memory,
                             const at::Tensor& hidden) const {
    const at::Tensor normed = norm(layer + "pre_cross_attn_layernorm", x);
    const at::Tensor q = linear(layer + "cross_attention.linear_q", normed).unflatten(-1, {4, 2});
    const at::Tensor kv = linear(layer + "cross_attention.linear_kv", memory).unflatten(-1, {2, 2, 2});
    const at::Tensor y = attend(q, kv.select(3, 0), kv.select(3, 1), hidden);
    return add(layer + "cross_attention", x, normed, linear(layer + "cross_attention.linear_proj", y));
  }

  at::Tensor mlp(const std::string& layer, const at::Tensor& x) const {
    const at::Tensor normed = norm(layer + "pre_mlp_layernorm", x);
    if (weights_.contains(layer + "mlp.gate"))
      return add(layer + "mlp", x, normed, gated(normed, weights_.at(layer + "mlp.gate")));
    const std::vector<at::Tensor> gate_up = linear(layer + "mlp.linear_fc1", normed).chunk(2, -1);
    return add(layer + "mlp", x, normed, linear(layer + "mlp.linear_fc2", at::silu(gate_up[0]) * gate_up[1]));
  }

  at::Tensor encoder_layer(const std::string& layer, const at::Tensor& x, const at::Tensor& hidden) const {
    if (weights_.contains(layer + "gate")) return x + gated(x, weights_.at(layer + "gate"));
    return mlp(layer, self_attention(layer, x, hidden));
  }

  Tensors weights_;
  Case case_;
};

at::Tensor local_part(const Shard& shard, const at::Tensor& global) {
  if (shard.dim < 0) return global;
  std::vector<at::Tensor> parts;
  for (const Piece& piece : shard.pieces())
    parts.push_back(global.narrow(shard.dim, piece.global.start[shard.dim], piece.global.size[shard.dim]));
  return at::cat(parts, shard.dim);
}

at::Tensor global_values(const Parameter& parameter) {
  return 0.5 * random(parameter.shard().global_shape, std::hash<std::string>()(parameter.name) % 1000);
}

struct Batch {
  at::Tensor source = random({source_length, samples, 16}, 1),
             target = random({target_length, samples, 16}, 2), dy = random({target_length, samples, 16}, 3);
};

// Output, gradients of the inputs ("source", "target") and of the parameters, by name; this rank's parts.
Tensors run_model(const Case& c, const Mesh& mesh, ParameterSet& parameters) {
  const TensorParallel parallel{mesh.group(Axis::tp), c.sequence_parallel};
  EncoderDecoder model(parameters, c, parallel);
  {
    const at::NoGradGuard no_grad;
    for (Parameter& parameter : parameters.all())
      parameter.tensor.copy_(local_part(parameter.shard(), global_values(parameter)));
  }
  const Batch batch;
  const at::Tensor source = parallel.sequence_shard(batch.source).clone().requires_grad_(),
                   target = parallel.sequence_shard(batch.target).clone().requires_grad_();
  const at::Tensor memory = model.encode(source, source_context(c));
  const at::Tensor y = model.decode(target, target_context(c, memory), nullptr);
  y.backward(parallel.sequence_shard(batch.dy));
  Tensors all{{"y", y.detach()}, {"source", source.grad()}, {"target", target.grad()}};
  for (Parameter& parameter : parameters.all()) {
    EXPECT_EQ(parameter.pending_grads, 0) << parameter.name;
    if (parameter.options.grad_sum.contains(Axis::tp))
      parallel.group.communicator->all_reduce(parameter.main_grad, ReduceOp::sum).wait();
    all[parameter.name] = parameter.main_grad;
  }
  return all;
}

// Global tensors, from the reference.
Tensors expected_of(const Case& c) {
  ParameterSet parameters({.dtype = at::kDouble});
  const EncoderDecoder model(parameters, c, {});
  Tensors weights;
  for (const Parameter& parameter : parameters.all())
    weights[parameter.name] = global_values(parameter).requires_grad_();
  const Batch batch;
  const at::Tensor source = batch.source.clone().requires_grad_(),
                   target = batch.target.clone().requires_grad_();
  const at::Tensor y = Reference(weights, c).forward(source, target);
  y.backward(batch.dy);
  Tensors all{{"y", y.detach()}, {"source", source.grad()}, {"target", target.grad()}};
  for (const auto& [name, weight] : weights) all[name] = weight.grad();
  return all;
}

void expect_equal(const Case& c, const Tensors& expected) {
  run_ranks(MeshOptions{.tp = c.tp}, [&](const Mesh& mesh) {
    ParameterSet parameters({.dtype = at::kDouble});
    const Tensors actual = run_model(c, mesh, parameters);
    const TensorParallel parallel{mesh.group(Axis::tp), c.sequence_parallel};
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [name, tensor] : actual) {
      const Parameter* const parameter = parameters.find(name);
      const at::Tensor& global = expected.at(name);
      const at::Tensor part =
          parameter ? local_part(parameter->shard(), global) : parallel.sequence_shard(global);
      EXPECT_TRUE(at::allclose(tensor, part, 1e-10, 1e-10)) << c.name << ", " << name;
    }
  });
}

using Granularity = RecomputeConfig::Granularity;
constexpr RecomputeConfig both_layers{.granularity = Granularity::layers, .layers = 2};

std::vector<Case> layouts() {
  return {{.name = "one rank"},
          {.name = "tp 2", .tp = 2},
          {.name = "sp 2", .tp = 2, .sequence_parallel = true},
          {.name = "selective", .recompute = {.granularity = Granularity::attention_core}},
          {.name = "layer by layer, tp 2",
           .tp = 2,
           .recompute = {.granularity = Granularity::layers, .distribute_inputs = true}},
          {.name = "both layers, sp 2", .tp = 2, .sequence_parallel = true, .recompute = both_layers}};
}

TEST(EncoderDecoder, MatchesPlainAttention) {
  for (Case c : layouts()) {
    for (const int options : {0, 1, 2, 3, 4}) {
      c.padding = options == 1;
      c.plain = options == 2;
      c.post_layernorm_residual = options == 3;
      c.output_norms = options == 4;
      expect_equal(c, expected_of(c));
    }
  }
}

TEST(EncoderDecoder, DropsTheSameElementsInEveryLayout) {
  Case serial{.name = "dropout"};
  const at::Tensor without = expected_of(serial).at("y");
  serial.dropout = 0.3;
  ParameterSet parameters({.dtype = at::kDouble});
  const Tensors expected = run_model(serial, Mesh(), parameters);
  EXPECT_FALSE(at::allclose(expected.at("y"), without));
  for (Case c : layouts()) {
    c.dropout = serial.dropout;
    expect_equal(c, expected);
  }
}

TEST(LayerStack, NamesParametersAndActivationsByItsScope) {
  ParameterSet parameters({.dtype = at::kDouble});
  EncoderDecoder model(parameters, {}, {});
  std::string names;
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.name.starts_with("decoder.layers.1.") && parameter.name.ends_with(".weight"))
      names += parameter.name.substr(17) + " ";
  }
  EXPECT_EQ(
      names,
      "input_layernorm.weight self_attention.linear_qkv.weight self_attention.linear_proj.weight "
      "pre_cross_attn_layernorm.weight cross_attention.linear_q.weight cross_attention.linear_kv.weight "
      "cross_attention.linear_proj.weight pre_mlp_layernorm.weight mlp.linear_fc1.weight "
      "mlp.linear_fc2.weight ");
  std::vector<std::string> outputs;
  for (LayerStack* stack : {&model.encoder, &model.decoder}) {
    stack->set_activation_hook(
        [&](const std::string& part, const at::Tensor&, const at::Tensor&) { outputs.push_back(part); });
  }
  const Batch batch;
  model.decode(batch.target, target_context({}, model.encode(batch.source, source_context({}))), nullptr);
  EXPECT_EQ(outputs, (std::vector<std::string>{"encoder.layers.0", "encoder.layers.1", "decoder.layers.0",
                                               "decoder.layers.1"}));
}

TEST(LayerStack, KeepsLayersAtTheEndsOutOfFp8) {
  ParameterSet parameters({.dtype = at::kBFloat16, .fp8 = Fp8Options()});
  const TransformerConfig config{.layers = 6, .bf16_layers_at_start = 1, .bf16_layers_at_end = 2};
  std::vector<int64_t> in_fp8;
  const LayerStack stage(Scope(parameters), config, {1, 5}, {}, [&](const Scope& scope, int64_t layer) {
    if (scope.fp8()) in_fp8.push_back(layer);
    return std::make_unique<GatedLayer>(scope, 16, TensorParallel{});
  });
  EXPECT_EQ(in_fp8, (std::vector<int64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace teratron
