#include "reverse.h"

#include <functional>
#include <random>

#include <ATen/ATen.h>

#include "teratron/comm/collectives.h"
#include "teratron/models/classifier/classifier.h"
#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/transformer/encoder_decoder_stage.h"
#include "teratron/models/transformer/language_model_plan.h"
#include "teratron/models/transformer/layer_context.h"
#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/nn/cost/embedding_cost.h"
#include "teratron/nn/cost/linear_cost.h"
#include "teratron/nn/cost/output_layer_cost.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/states/slot_state.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"
#include "teratron/train/registry.h"

using namespace teratron;

namespace {

std::vector<BranchOptions> recurrent_branches(const TransformerConfig& config, int64_t layer);

struct Config {
  Config(const ReverseSettings& own, const Arguments& args, int64_t vocabulary)
      : settings(own), decoder(gpt_config(args, vocabulary)), encoder(decoder) {
    encoder.layers = settings.encoder_layers;
    encoder.mask = Mask::full;
    encoder.first_dropout_site = uint64_t{1} << 32U;
    decoder.cross_attention = true;
    decoder.branches = recurrent_branches;
  }
  ReverseSettings settings;
  GPTConfig decoder;
  TransformerConfig encoder;
};

// h_s = f_s h_(s-1) + (1 - f_s) u_s with f = sigmoid(W_f x), u = W_u x, for each channel: a gated recurrence
// (a minimal gated unit without h in its gate). Of a sequence it keeps h alone.
class GatedRecurrence : public Mixer {
 public:
  GatedRecurrence(const Scope& scope, int64_t hidden, const Init& init, const TensorParallel& parallel)
      : channels_(hidden / parallel.group.size),
        in_(scope / "linear_in",
            {.in = hidden, .out = 2 * hidden, .init = init, .segments = {hidden, hidden}}, parallel),
        out_(scope / "linear_proj", {.in = hidden, .out = hidden, .init = init}, parallel),
        tensors_(scope.options().tensors()) {}

  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override {
    const std::vector<at::Tensor> parts = apply_bias_grad(in_.forward(x_SBH.tensor())).chunk(2, 2);
    const at::Tensor f_SBC = parts[0].sigmoid(), u_SBC = (1.0 - f_SBC) * parts[1];
    const at::Tensor h_SBC = state ? generate(f_SBC, u_SBC, context, static_cast<SlotState&>(*state))
                                   : scan(f_SBC, u_SBC, at::zeros_like(u_SBC[0]));
    return out_.forward_add_residual(h_SBC, residual);
  }
  std::unique_ptr<LayerState> make_state(LayerState* /*before*/) const override {
    return std::make_unique<SlotState>(at::IntArrayRef{channels_}, tensors_);
  }

 private:
  static at::Tensor scan(const at::Tensor& f_SBC, const at::Tensor& u_SBC, at::Tensor h_BC) {
    std::vector<at::Tensor> h;
    for (int64_t s = 0; s < u_SBC.size(0); ++s) h.push_back(h_BC = f_SBC[s] * h_BC + u_SBC[s]);
    return at::stack(h);
  }

  // The rows of a step: one new token of each sequence, or parts of prompts.
  static at::Tensor generate(const at::Tensor& f_T1C, const at::Tensor& u_T1C, const LayerContext& context,
                             SlotState& state) {
    at::Tensor h_RC = state.read(context);
    if (context.generation->has_single_tokens(u_T1C.size(0))) {
      h_RC = f_T1C.squeeze(1) * h_RC + u_T1C.squeeze(1);
      state.write(h_RC, context);
      return h_RC.unsqueeze(1);
    }
    std::vector<at::Tensor> h;
    for (int64_t r = 0; const auto& row : context.generation->rows) {
      const auto own = [&](const at::Tensor& x_T1C) { return x_T1C.narrow(0, row.first_token, row.tokens); };
      h.push_back(scan(own(f_T1C), own(u_T1C), h_RC.narrow(0, r, 1)));
      h_RC[r++].copy_(h.back()[-1][0]);
    }
    state.write(h_RC, context);
    return at::cat(h);
  }

  int64_t channels_;  // of this rank
  ColumnLinear in_;
  RowLinear out_;
  at::TensorOptions tensors_;
};

// Its costs. Backward needs W_f x, W_u x, f, 1 - f and h of each token, and a copy of h for linear_proj.
std::vector<Operator> recurrence_operators(const std::string& name, const RankSizes& sizes) {
  const double channels = as_real(sizes.states.width) / sizes.shards;
  const double h = sizes.tokens * channels * sizes.element;
  Operator scan{.name = name + ".scan", .bytes = 8.0 * h, .saved = 5.0 * h};
  scan.forward_peak = scan.saved + 2.0 * h;
  scan.backward_peak = scan.saved + 3.0 * h + sizes.residual_stream;
  return {column_operator(name + ".linear_in", sizes, 2.0 * channels, sizes.batch.fp8), scan,
          row_operator(name + ".linear_proj", sizes, channels, sizes.batch.fp8)};
}

// A recurrence in place of self-attention.
std::vector<BranchOptions> recurrent_branches(const TransformerConfig& config, int64_t layer) {
  std::vector<BranchOptions> all = transformer_branches(config, layer);
  all[0].mixer = mixer_factory<GatedRecurrence>(config.hidden, weight_init(config));
  all[0].operators = recurrence_operators;
  return all;
}

// The target is the source backwards; its kind is that of its first token.
class Reversals : public Dataset {
 public:
  Reversals(int64_t samples, int64_t vocabulary, int64_t kinds, uint64_t seed)
      : samples_(samples), vocabulary_(vocabulary), kinds_(kinds), seed_(seed) {}
  int64_t size() const override { return samples_; }
  std::string describe() const override { return "sequences to reverse"; }
  void get(int64_t i, const Sample& sample) const override {
    std::mt19937_64 random(seed_ * 1'000'003 + static_cast<uint64_t>(i));
    const auto source = sample.i64("encoder_tokens");
    for (int64_t& token : source) token = 1 + static_cast<int64_t>(random() % (vocabulary_ - 1));
    const auto tokens = sample.i64("decoder_tokens"), labels = sample.i64("labels");
    for (size_t s = 0; s < source.size() && s < labels.size(); ++s) {  // columns are zero at first
      labels[s] = source[source.size() - 1 - s];
      if (s + 1 < tokens.size()) tokens[s + 1] = labels[s];
      sample.f32("loss_mask")[s] = 1.0F;
    }
    sample.i64("kind")[0] = source[0] % kinds_;
  }

 private:
  int64_t samples_, vocabulary_, kinds_;
  uint64_t seed_;
};

class Reverser : public Model {
 public:
  Reverser(const Config& config, const StageContext& part)
      : Model(part.stage),
        config_(config),
        here_(config.encoder, config.decoder, part.stage),
        parallel_(part.parallel) {
    const Scope root(part.parameters);
    const GPTConfig& gpt = config.decoder;
    const Init init = weight_init(gpt);
    const VocabularyOptions words{gpt.vocabulary, gpt.padded_vocabulary, gpt.hidden, init};
    // Frozen: random features of tokens and positions that are never trained.
    const auto features = [&](const char* name, int64_t count) {
      const Shard whole = Shard::replicated({count, gpt.hidden});
      return &root.parameter(name, {.shard = whole, .init = Init::normal(0.5), .trainable = false});
    };
    if (here_.embeds_source) tokens_ = features("token_features", gpt.vocabulary);
    if (here_.embeds_source || here_.embeds_target)
      positions_ = features("position_features", gpt.max_positions);
    const auto stack = [&](const char* name, const TransformerConfig& own, const LayerRange& layers) {
      return std::make_unique<LayerStack>(root / name / "layers", own, layers, parallel_,
                                          transformer_layers(own, parallel_, part.mesh));
    };
    encoder_ = stack("encoder", config.encoder, here_.encoder);
    if (here_.ends_encoder)
      memory_norm_.emplace(root / "encoder" / "final_layernorm", gpt.hidden, gpt.norm, parallel_);
    if (here_.embeds_target) embedding_.emplace(root / "embedding", words, parallel_);
    decoder_ = stack("decoder", config.decoder, here_.decoder);
    if (!here_.head) return;
    last_norm_.emplace(root / "decoder" / "final_layernorm", gpt.hidden, gpt.norm, parallel_);
    const Shard columns = vocabulary_shard(words, parallel_.group);
    Parameter& output = root.parameter("output_layer.weight", {.shard = columns, .init = init});
    output_layer_.emplace(ParallelMatmul::column(output, nullptr, parallel_));
    // Each tensor-parallel rank applies it to its part of the sequence, a replica like data-parallel ones.
    const Shard whole = Shard::replicated({config.settings.kinds, gpt.hidden});
    const AxisSet replicas = replica_axes | Axis::tp;
    classifier_ = &root.parameter("classifier", {.shard = whole, .init = init, .replicated_over = replicas});
  }

  // In a generation the sources of most steps are known already.
  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override {
    at::Tensor source = input["source"], memory = input["memory"], hidden = input["hidden"];
    if (batch["encoder_index"].defined() && here_.encoder.count > 0) {
      if (here_.embeds_source)
        source = rows(*tokens_, batch["encoder_tokens"]) + rows(*positions_, batch["encoder_index"]);
      source = apply_bias_grad(encoder_->forward(source, context(batch, "encoder_index"), nullptr));
      if (here_.ends_encoder) memory = memory_norm_->forward(source);
    }
    if (here_.embeds_target)
      hidden = embedding_->forward(batch["decoder_tokens"]) + rows(*positions_, batch["decoder_index"]);
    if (here_.decoder.count > 0) {
      LayerContext decoding = context(batch, "decoder_index");
      decoding.memory.hidden_SBH = memory;
      hidden = apply_bias_grad(decoder_->forward(hidden, decoding, states));
    }
    if (last_norm_) hidden = last_norm_->forward(hidden);
    return {{"source", source}, {"memory", memory}, {"hidden", hidden}};
  }
  std::unique_ptr<LayerStates> make_states() const override { return decoder_->make_states(); }
  at::Tensor logits(const Activations& output) override { return linear(output["hidden"], *output_layer_); }

  std::vector<LossTerm> losses(const Activations& output, const MicroBatch& batch) override {
    const at::Tensor losses_SB = linear_cross_entropy(output["hidden"], *output_layer_, batch["labels"],
                                                      {.vocabulary = config_.decoder.vocabulary});
    const at::Tensor scores_BK = kind_scores(output["memory"], batch["encoder_index"].size(0));
    return {masked_loss(losses_SB, batch["loss_mask"]),
            classification_loss(scores_BK, batch["kind"], ClassifierTarget::one_of)};
  }

 private:
  LayerContext context(const MicroBatch& batch, std::string_view index) const {
    MicroBatch own = batch;
    own.tensors = {{"sequence_index", batch[index]}};
    return layer_context(own, config_.decoder, nullptr);
  }
  at::Tensor rows(const Parameter& features, const at::Tensor& ids_SB) const {
    return at::embedding(features.tensor, parallel_.sequence_shard(ids_SB));
  }
  // The mean over the source, of which each tensor-parallel rank takes its part.
  at::Tensor kind_scores(at::Tensor memory_SBH, int64_t length) const {
    const Group& ranks = parallel_.group;
    if (!parallel_.sequence_parallel)
      memory_SBH = copy_to(memory_SBH, ranks).chunk(ranks.size, 0)[ranks.rank];
    const at::Tensor part_BH = memory_SBH.sum(0) / static_cast<double>(length);
    return reduce_from(at::linear(part_BH, autograd_tensor(*classifier_)), ranks);
  }

  Config config_;
  EncoderDecoderStage here_;
  TensorParallel parallel_;
  Parameter *tokens_ = nullptr, *positions_ = nullptr, *classifier_ = nullptr;
  std::unique_ptr<LayerStack> encoder_, decoder_;
  std::optional<Norm> memory_norm_, last_norm_;
  std::optional<VocabParallelEmbedding> embedding_;
  std::optional<ParallelMatmul> output_layer_;
};

BatchSchema make_schema(int64_t source, int64_t target) {
  return {{.name = "encoder_tokens", .shape = {source}, .stages = Column::Stages::first},
          {.name = "encoder_index", .shape = {source}, .kind = Column::Kind::index},
          {.name = "decoder_tokens", .shape = {target}},
          {.name = "decoder_index", .shape = {target}, .kind = Column::Kind::index},
          {.name = "labels", .shape = {target}, .stages = Column::Stages::last},
          {.name = "loss_mask", .type = ColumnType::f32, .shape = {target}, .stages = Column::Stages::last},
          {.name = "kind", .shape = {1}, .kind = Column::Kind::sample, .stages = Column::Stages::last}};
}

// For `plan`, MFU and out-of-memory messages.
std::vector<Operator> stage_operators(const Config& config, const RankBatch& batch, const StageSpec& stage) {
  const EncoderDecoderStage here(config.encoder, config.decoder, stage);
  const int64_t width = config.decoder.hidden, kinds = config.settings.kinds;
  RankBatch source = batch, target = batch, sums = batch;
  source.batch = {batch.batch.samples, config.settings.source_length};
  target.memory = source.batch;
  sums.batch = {batch.batch.samples, 1};
  std::vector<Operator> all =
      stack_operators("encoder", config.encoder, source,
                      {.layers = here.encoder, .received = !here.embeds_source, .ends = here.ends_encoder});
  const RankSizes words({.width = width}, target), sum({.width = width}, sums);
  if (here.embeds_target) all.push_back(embedding_operator(words));
  append(all, stack_operators("decoder", config.decoder, target,
                              {.layers = here.decoder, .received = !here.embeds_target, .ends = here.head}));
  if (!here.head) return all;
  append(all, output_layer_operators({.width = width, .columns = config.decoder.padded_vocabulary}, words));
  all.push_back(gemm_operator("classifier", sum, as_real(width), as_real(kinds)));
  all.back().add_saved(sum.tokens * as_real(width + kinds) * sum.element);
  return all;
}

ModelPlan make_plan(const ReverseSettings& settings, const Arguments& args, int64_t vocabulary) {
  const Config config(settings, args, vocabulary);
  const int64_t end = config.encoder.layers, stages = args.pipeline_model_parallel_size;
  const Channel::Shape source = sequence_shape("encoder_index", config.decoder.hidden);
  const Channel::Shape target = sequence_shape("decoder_index", config.decoder.hidden);
  const auto before = [end](int64_t layer) { return layer < end; };
  const auto from = [end](int64_t layer) { return layer >= end; };
  const auto after = [end](int64_t layer) { return layer > end; };
  ModelPlan plan = language_model_plan(config.decoder, "decoder",
                                       make_schema(settings.source_length, args.seq_length.value_or(0)));
  plan.towers = {{"encoder", config.encoder.layers}, {"decoder", config.decoder.layers}};
  plan.channels = {{.name = "source", .shape = source, .crosses = before, .of_source = true},
                   {.name = "memory", .shape = source, .crosses = from, .of_source = true},
                   {.name = "hidden", .shape = target, .crosses = after}};
  plan.losses = {"lm loss", "kind loss"};
  plan.text = {.tokens = "decoder_tokens", .index = "decoder_index"};
  plan.source = SourceOptions{.tokens = "encoder_tokens", .index = "encoder_index"};
  plan.build = [config](const StageContext& part) { return std::make_unique<Reverser>(config, part); };
  plan.operators = std::bind_front(stage_operators, config);
  if (stages > 1) plan.split = PipelineSplit{end, stages / 2};
  return plan;
}

void check(const ReverseSettings& settings, const Arguments& args, std::vector<Problem>& problems) {
  if (settings.source_length > args.max_position_embeddings.value_or(args.seq_length.value_or(0)))
    problems.push_back({"the source is longer than the positions", "--source-length", "Shorten the source"});
}

Datasets make_datasets(const ReverseSettings& settings, const DataRequest& request) {
  const auto make = [&](size_t split) -> std::shared_ptr<const Dataset> {
    const int64_t samples = request.samples[split].value_or(100'000);
    if (samples == 0) return nullptr;
    const auto seed = static_cast<uint64_t>(request.args.seed) + split;
    return std::make_shared<Reversals>(samples, request.tokenizer.vocab_size(), settings.kinds, seed);
  };
  return {make(0), make(1), make(2)};
}

}  // namespace

Family reverse_family(ReverseSettings& settings) {
  return {.name = "reverse",
          .summary = "encoder-decoder that writes sequences backwards and names their kind",
          .fields = {custom_field("encoder_layers", &settings.encoder_layers, "Encoder layers", {.min = 1}),
                     custom_field("source_length", &settings.source_length, "Tokens to reverse", {.min = 1}),
                     custom_field("kinds", &settings.kinds, "Number of kinds", {.min = 1})},
          .check = std::bind_front(check, std::cref(settings)),
          .plan = std::bind_front(make_plan, std::cref(settings)),
          .datasets = std::bind_front(make_datasets, std::cref(settings))};
}
