// An encoder reads a sequence, a decoder writes it backwards, a classifier names its kind. The family brings
// settings, batch columns, data, two losses, a frozen embedding, a pipeline split, and a parameter that
// tensor-parallel ranks replicate like data-parallel ones. Its decoder has a gated recurrence in place of
// self-attention, with a state of constant size in generation.
//
//   own_model pretrain reverse FLAGS... [--encoder-layers 2] [--source-length 16] [--kinds 4]
//     [--generate-interval 100 --generate-prompts prompts.jsonl]
//
// A line of prompts.jsonl: {"encoder_tokens": [5, 6, 7], "tokens": [0], "max_new_tokens": 3, "top_k": 1}
#include <functional>
#include <random>

#include <ATen/ATen.h>

#include "teratron/cli/program.h"
#include "teratron/comm/collectives.h"
#include "teratron/models/gpt/gpt_config.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/models/transformer/layer_stack_cost.h"
#include "teratron/models/transformer/transformer_layer.h"
#include "teratron/models/transformer/transformer_layer_cost.h"
#include "teratron/nn/cost/linear_cost.h"
#include "teratron/nn/cost/output_layer_cost.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/slot_state.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"

using namespace teratron;

namespace {

struct Settings {
  int64_t encoder_layers = 2;
  int64_t source_length = 16;
  int64_t kinds = 4;
};

struct Config {
  GPTConfig decoder;
  TransformerConfig encoder;
  int64_t kinds = 0;
};

Config make_config(const Settings& settings, const Arguments& args, int64_t vocabulary) {
  Config config{.decoder = gpt_config(args, vocabulary), .kinds = settings.kinds};
  config.encoder = config.decoder;
  config.encoder.layers = settings.encoder_layers;
  config.encoder.mask = Mask::full;
  config.encoder.first_dropout_site = uint64_t{1} << 32U;
  config.decoder.cross_attention = true;
  return config;
}

// h_s = f_s h_(s-1) + (1 - f_s) u_s with f = sigmoid(W_f x), u = W_u x, for each channel: a gated recurrence
// (a minimal gated unit without h in its gate). Of a sequence it keeps h alone.
class GatedRecurrence : public Mixer {
 public:
  GatedRecurrence(const Scope& scope, const TransformerConfig& config, const TensorParallel& parallel)
      : channels_(config.hidden / parallel.group.size),
        in_(scope / "linear_in",
            {.in = config.hidden,
             .out = 2 * config.hidden,
             .init = weight_init(config),
             .segments = {config.hidden, config.hidden}},
            parallel),
        out_(scope / "linear_proj", {.in = config.hidden, .out = config.hidden, .init = weight_init(config)},
             parallel),
        tensors_(at::TensorOptions().dtype(scope.options().dtype).device(scope.options().device)) {}

  Hidden forward_add_residual(const Normed& x_SBH, const ResidualDropout& residual,
                              const LayerContext& context, LayerState* state) override {
    const std::vector<at::Tensor> parts = apply_bias_grad(in_.forward(x_SBH.tensor())).chunk(2, 2);
    const at::Tensor f_SBC = parts[0].sigmoid(), u_SBC = (1.0 - f_SBC) * parts[1];
    const at::Tensor h_SBC = state ? generate(f_SBC, u_SBC, context, static_cast<SlotState&>(*state))
                                   : scan(f_SBC, u_SBC, at::zeros({u_SBC.size(1), channels_}, tensors_));
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

// Its costs: two projections, and between them f, 1 - f, W_f x, W_u x of each token for backward, whose h is
// the second one's input.
std::vector<Operator> recurrence_operators(const std::string& name, const RankSizes& sizes) {
  const double hidden = as_real(sizes.states.width), channels = hidden / sizes.shards;
  const double h = sizes.tokens * channels * sizes.element;
  Operator in = gemm_operator(name + ".linear_in", sizes, hidden, 2.0 * channels);
  in.saved = column_input(sizes, hidden, sizes.batch.fp8);
  in.forward_peak = in.saved + sizes.gathered(sizes.whole_hidden()) + 2.0 * h;
  in.backward_peak = in.forward_peak + sizes.residual_stream;
  Operator scan{.name = name + ".scan", .bytes = 8.0 * h, .saved = 4.0 * h};
  scan.forward_peak = scan.saved + 3.0 * h;
  scan.backward_peak = scan.saved + 3.0 * h + sizes.residual_stream;
  Operator out = gemm_operator(name + ".linear_proj", sizes, channels, hidden);
  out.saved = row_input(sizes, channels, sizes.batch.fp8);
  out.forward_peak = out.saved + row_output(sizes);
  out.backward_peak = out.saved + row_gradient(sizes) + h;
  return {in, scan, out};
}

// The target is the source backwards; its kind is that of its first token.
class Reversals : public Dataset {
 public:
  Reversals(int64_t samples, uint64_t seed, int64_t vocabulary, int64_t kinds)
      : samples_(samples), seed_(seed), vocabulary_(vocabulary), kinds_(kinds) {}
  int64_t size() const override { return samples_; }
  std::string describe() const override { return "sequences to reverse"; }
  void get(int64_t i, const Sample& sample) const override {
    std::mt19937_64 random(seed_ * 1'000'003 + static_cast<uint64_t>(i));
    const auto source = sample.i64("encoder_tokens");
    for (int64_t& token : source) token = 1 + static_cast<int64_t>(random() % (vocabulary_ - 1));
    const auto tokens = sample.i64("decoder_tokens"), labels = sample.i64("labels");
    for (size_t s = 0; s < labels.size(); ++s) {
      const bool inside = s < source.size();
      labels[s] = inside ? source[source.size() - 1 - s] : 0;
      tokens[s] = s == 0 ? 0 : labels[s - 1];
      sample.f32("loss_mask")[s] = inside ? 1.0F : 0.0F;
    }
    sample.i64("kind")[0] = source[0] % kinds_;
  }

 private:
  int64_t samples_;
  uint64_t seed_;
  int64_t vocabulary_, kinds_;
};

class Reverser : public Model {
 public:
  Reverser(const Config& config, const std::vector<Tower>& towers, const StageContext& part)
      : Model(part.stage),
        config_(config),
        parallel_(part.parallel),
        encoder_range_(layers_of_tower(towers, 0, part.stage)),
        decoder_range_(layers_of_tower(towers, 1, part.stage)) {
    const Scope root(part.parameters);
    const GPTConfig& gpt = config.decoder;
    const Init init = weight_init(gpt);
    const VocabularyOptions words{gpt.vocabulary, gpt.padded_vocabulary, gpt.hidden, init};
    const auto norm = [&](const Scope& scope) {
      return std::make_unique<Norm>(scope / "final_layernorm", gpt.hidden, gpt.norm, parallel_);
    };
    // Frozen: random features of tokens and positions that are never trained.
    const auto features = [&](const char* name, int64_t count) {
      const Shard whole = Shard::replicated({count, gpt.hidden});
      return &root.parameter(name, {.shard = whole, .init = Init::normal(0.5), .trainable = false});
    };
    if (part.stage.embedding) token_features_ = features("token_features", gpt.vocabulary);
    if (part.stage.embedding || decoder_starts())
      position_features_ = features("position_features", gpt.max_positions);
    encoder_ = make_stack(root / "encoder" / "layers", config_.encoder, encoder_range_);
    if (encoder_ends()) memory_norm_ = norm(root / "encoder");
    if (decoder_starts())
      embedding_ = std::make_unique<VocabParallelEmbedding>(root / "embedding", words, parallel_);
    decoder_ = make_stack(root / "decoder" / "layers", config_.decoder, decoder_range_);
    if (!part.stage.head) return;
    last_norm_ = norm(root / "decoder");
    const Shard columns = vocabulary_shard(words, parallel_.group);
    Parameter& output = root.parameter("output_layer.weight", {.shard = columns, .init = init});
    output_layer_.emplace(ParallelMatmul::column(output, nullptr, parallel_));
    // Each tensor-parallel rank applies it to its part of the sequence, a replica like data-parallel ones.
    const Shard whole = Shard::replicated({config.kinds, gpt.hidden});
    const AxisSet replicas = replica_axes | Axis::tp;
    classifier_ = &root.parameter("classifier", {.shard = whole, .init = init, .replicated_over = replicas});
  }

  // In a generation the sources of most steps are known already.
  Activations forward(const Activations& input, const MicroBatch& batch, LayerStates* states) override {
    at::Tensor source = input["source"], memory = input["memory"], hidden = input["hidden"];
    if (batch["encoder_index"].defined() && encoder_range_.count > 0) {
      if (stage().embedding) {
        const at::Tensor ids_SB = parallel_.sequence_shard(batch["encoder_tokens"]);
        source = at::embedding(token_features_->tensor, ids_SB) + positions(batch["encoder_index"]);
      }
      source = apply_bias_grad(encoder_->forward(source, context(batch, "encoder_index"), nullptr));
      if (encoder_ends()) memory = memory_norm_->forward(source);
    }
    if (decoder_starts())
      hidden = embedding_->forward(batch["decoder_tokens"]) + positions(batch["decoder_index"]);
    if (decoder_range_.count > 0) {
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
    const at::Tensor losses_SB =
        linear_cross_entropy(output["hidden"], *output_layer_, batch["labels"], config_.decoder.vocabulary);
    const at::Tensor kind_B = batch["kind"].squeeze(1);
    const at::Tensor scores_BK =
        kind_scores(output["memory"], batch["encoder_index"].size(0)).to(losses_SB.scalar_type());
    const at::Tensor kind_loss = at::cross_entropy_loss(scores_BK, kind_B, {}, at::Reduction::Sum);
    const at::Tensor samples = at::full({}, kind_B.size(0), losses_SB.options());
    return {masked_loss(losses_SB, batch["loss_mask"]), {kind_loss, samples}};
  }

 private:
  bool encoder_ends() const {
    return encoder_range_.count > 0 && encoder_range_.first + encoder_range_.count == config_.encoder.layers;
  }
  bool decoder_starts() const { return decoder_range_.first == 0 && decoder_range_.count > 0; }
  std::unique_ptr<LayerStack> make_stack(const Scope& scope, const TransformerConfig& config,
                                         const LayerRange& layers) {
    const auto make_layer = [this, &config](const Scope& layer, int64_t number) {
      const auto recurrence = [&](const Scope& own) {
        return std::make_unique<GatedRecurrence>(own, config, parallel_);
      };
      const bool decodes = config.cross_attention;
      return std::make_unique<TransformerLayer>(
          layer, config, number, parallel_,
          LayerParts{.attention = decodes ? MixerFactory(recurrence) : nullptr});
    };
    return std::make_unique<LayerStack>(scope, config, layers, parallel_, make_layer);
  }

  LayerContext context(const MicroBatch& batch, std::string_view index) const {
    const at::Tensor& rows_SB = batch[index];
    return {.positions_SB = rows_SB,
            .generation = batch.generation,
            .rows = {rows_SB.select(1, 0), rows_SB.size(0) * batch.context_parallel.size()},
            .dropout_seed = config_.decoder.dropout_seed,
            .sample_ids_B = batch.sample_ids_B,
            .training = batch.training};
  }

  at::Tensor positions(const at::Tensor& ids_SB) const {
    return at::embedding(position_features_->tensor, parallel_.sequence_shard(ids_SB));
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
  TensorParallel parallel_;
  LayerRange encoder_range_, decoder_range_;
  Parameter* token_features_ = nullptr;
  Parameter* position_features_ = nullptr;
  Parameter* classifier_ = nullptr;
  std::unique_ptr<LayerStack> encoder_, decoder_;
  std::unique_ptr<Norm> memory_norm_, last_norm_;
  std::unique_ptr<VocabParallelEmbedding> embedding_;
  std::optional<ParallelMatmul> output_layer_;
};

BatchSchema make_schema(const Settings& settings, int64_t length) {
  using Kind = Column::Kind;
  using Stages = Column::Stages;
  return {{.name = "encoder_tokens", .shape = {settings.source_length}, .stages = Stages::first},
          {.name = "encoder_index", .shape = {settings.source_length}, .kind = Kind::index},
          {.name = "decoder_tokens", .shape = {length}},
          {.name = "decoder_index", .shape = {length}, .kind = Kind::index},
          {.name = "labels", .shape = {length}, .stages = Stages::last},
          {.name = "loss_mask", .type = ColumnType::f32, .shape = {length}, .stages = Stages::last},
          {.name = "kind", .shape = {1}, .kind = Kind::sample, .stages = Stages::last}};
}

// The layers and the output layer, for `plan`, MFU and out-of-memory messages.
OperatorsOf operators_of(const Config& config, const std::vector<Tower>& towers, int64_t source_length) {
  return [config, towers, source_length](const RankBatch& batch, const StageSpec& stage) {
    RankBatch source = batch, target = batch;
    source.batch = {batch.batch.samples, source_length};
    target.memory = source.batch;
    const auto decoder_layer = [config](const std::string& name, const RankBatch& own, int64_t layer) {
      const PartCosts parts{.attention = recurrence_operators};
      return layer_operators(name, config.decoder, own, branch_costs(config.decoder, layer, parts));
    };
    std::vector<Operator> all =
        stack_operators("encoder.layers", config.encoder, source, {layers_of_tower(towers, 0, stage)});
    append(all, stack_operators("decoder.layers", config.decoder, target,
                                {.layers = layers_of_tower(towers, 1, stage), .operators = decoder_layer}));
    if (!stage.head) return all;
    append(all, output_layer_operators(
                    {.width = config.decoder.hidden, .columns = config.decoder.padded_vocabulary},
                    RankSizes(hidden_states(config.decoder), target)));
    return all;
  };
}

ModelPlan make_plan(const Settings& settings, const Arguments& args, int64_t vocabulary) {
  const Config config = make_config(settings, args, vocabulary);
  const std::vector<Tower> towers = {{"encoder", config.encoder.layers}, {"decoder", config.decoder.layers}};
  const int64_t end = config.encoder.layers, stages = args.pipeline_model_parallel_size;
  const Channel::Shape source = sequence_shape("encoder_index", config.decoder.hidden);
  const Channel::Shape target = sequence_shape("decoder_index", config.decoder.hidden);
  const auto build = [config, towers](const StageContext& part) {
    return std::make_unique<Reverser>(config, towers, part);
  };
  const auto before = [end](int64_t layer) { return layer < end; };
  const auto from = [end](int64_t layer) { return layer >= end; };
  const auto after = [end](int64_t layer) { return layer > end; };
  const char* const index = "encoder_index";
  return {.towers = towers,
          .batch = make_schema(settings, args.seq_length.value_or(0)),
          .channels = {{.name = "source", .shape = source, .crosses = before, .needs_column = index},
                       {.name = "memory", .shape = source, .crosses = from, .needs_column = index},
                       {.name = "hidden", .shape = target, .crosses = after}},
          .losses = {"lm loss", "kind loss"},
          .vocabulary = config.decoder.vocabulary,
          .padded_vocabulary = config.decoder.padded_vocabulary,
          .max_positions = config.decoder.max_positions,
          .encodes = true,
          .build = build,
          .split = stages > 1 ? std::optional(PipelineSplit{end, stages / 2}) : std::nullopt,
          .operators = operators_of(config, towers, settings.source_length)};
}

void check(const Settings& settings, const Arguments& args, std::vector<Problem>& problems) {
  if (settings.source_length > args.max_position_embeddings.value_or(args.seq_length.value_or(0)))
    problems.push_back({"the source is longer than the positions", "--source-length", "Shorten the source"});
}

Datasets make_datasets(const Settings& settings, const DataRequest& request) {
  const auto make = [&](size_t split) -> std::shared_ptr<const Dataset> {
    const int64_t samples = request.samples[split].value_or(100'000);
    if (samples == 0) return nullptr;
    const auto seed = static_cast<uint64_t>(request.args.seed) + split;
    return std::make_shared<Reversals>(samples, seed, request.tokenizer.vocab_size(), settings.kinds);
  };
  return {make(0), make(1), make(2)};
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  const Family family{
      .name = "reverse",
      .summary = "encoder-decoder that writes sequences backwards and names their kind",
      .fields = {custom_field("encoder_layers", &settings.encoder_layers, "Encoder layers", {.min = 1}),
                 custom_field("source_length", &settings.source_length, "Tokens to reverse", {.min = 1}),
                 custom_field("kinds", &settings.kinds, "Number of kinds", {.min = 1})},
      .check = std::bind_front(check, std::cref(settings)),
      .plan = std::bind_front(make_plan, std::cref(settings)),
      .datasets = std::bind_front(make_datasets, std::cref(settings))};
  return teratron::main(argc, argv, {.families = {family}});
}
