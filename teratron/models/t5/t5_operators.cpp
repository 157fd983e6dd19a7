#include "teratron/models/t5/t5_operators.h"

#include <algorithm>

#include "teratron/models/t5/t5.h"
#include "teratron/models/transformer/operators.h"

namespace teratron {

namespace {

struct CrossSizes {
  const TransformerConfig& config;
  const RankBatch& batch;  // of the decoder
  RankSizes target, source;
};

// Hidden states [queries, H] to [queries, heads] or [keys, 2 groups], on this rank.
Operator projection(const std::string& name, const CrossSizes& s, const RankSizes& rows, double heads) {
  const auto hidden = static_cast<double>(s.config.hidden);
  const double width = heads * static_cast<double>(s.config.kv_channels) / rows.shards;
  Operator op = gemm_operator(name, rows, hidden, width);
  op.saved = rows.column_input(hidden, false);
  const double whole = rows.tokens * hidden * rows.element, y = rows.tokens * width * rows.element;
  const double gathered = rows.gathers ? whole : 0.0;
  op.forward_peak = op.saved + gathered + y + rows.gemm_workspace;
  op.backward_peak = op.saved + gathered + 2.0 * y + whole + rows.residual_stream + rows.gemm_workspace;
  return op;
}

Operator core(const std::string& name, const CrossSizes& s) {
  const double heads = static_cast<double>(s.config.heads) / s.target.shards;
  const double width = static_cast<double>(s.config.kv_channels);
  const double q = s.target.tokens * heads * width * s.target.element;
  const bool drops = s.config.attention_dropout > 0.0;
  // Backends of CPUs, and the one with dropout, repeat keys and values for every query head of their group.
  const int64_t kept = drops || !s.batch.gpu ? s.config.heads : s.config.query_groups;
  const double kv =
      2.0 * s.source.tokens * static_cast<double>(kept) / s.target.shards * width * s.target.element;
  const double scores = s.target.samples * heads * s.target.queries * s.source.keys;
  Operator op{.name = name, .kind = Operator::Kind::attention};
  op.flops = 4.0 * scores * width;
  op.bytes = 2.0 * q + kv;
  const double stored =
      drops ? 2.0 * scores * s.target.element : s.target.tokens * heads * s.target.statistic;
  op.saved = 2.0 * q + kv + stored;  // queries, keys and values, and the output
  op.forward_peak = op.saved + q + (drops ? scores * s.target.element : 0.0);
  op.backward_peak =
      op.saved + 3.0 * q + kv + s.target.residual_stream + (drops ? 3.0 * scores * s.target.element : q);
  return op;
}

Operator output(const std::string& name, const CrossSizes& s) {
  const RankSizes& rows = s.target;
  const double width = static_cast<double>(s.config.heads * s.config.kv_channels) / rows.shards;
  Operator op = gemm_operator(name, rows, width, static_cast<double>(s.config.hidden));
  const double y = rows.tokens * static_cast<double>(s.config.hidden) * rows.element;
  op.forward_peak = rows.gemm_workspace + y + rows.residual_stream;
  op.backward_peak =
      rows.gemm_workspace + 2.0 * rows.residual_stream + y + rows.tokens * width * rows.element;
  return op;
}

std::vector<Operator> cross_operators(const std::string& layer, const CrossSizes& s) {
  const std::string name = layer + ".cross_attention";
  Operator keys_and_values =
      projection(name + ".linear_kv", s, s.source, 2.0 * static_cast<double>(s.config.query_groups));
  for (double* bytes :
       {&keys_and_values.saved, &keys_and_values.forward_peak, &keys_and_values.backward_peak})
    *bytes -= s.source.hidden;  // the encoder's output, which all layers share
  return {norm_operator(layer + ".pre_cross_attn_layernorm", s.config, s.target),
          projection(name + ".linear_q", s, s.target, static_cast<double>(s.config.heads)), keys_and_values,
          core(name + ".core_attention", s), output(name + ".linear_proj", s)};
}

// A decoder's layers with the cross attention before their MLPs, in the same units of recomputation.
std::vector<Operator> decoder_operators(const CrossSizes& s, const LayerRange& layers) {
  const std::string_view mlp = ".pre_mlp_layernorm";
  const double output = s.source.hidden;
  std::vector<Operator> all = {{.name = "encoder_output",
                                .saved = output,
                                .forward_peak = output,
                                .backward_peak = 2.0 * output}};  // with its gradient
  for (Operator& op : stack_operators("decoder.layers", s.config, s.batch, layers.first, layers.count)) {
    if (op.name.ends_with(mlp)) {
      for (Operator& cross : cross_operators(op.name.substr(0, op.name.size() - mlp.size()), s)) {
        cross.recompute_unit = op.recompute_unit;
        cross.offload = op.offload;
        all.push_back(std::move(cross));
      }
    }
    all.push_back(std::move(op));
  }
  return all;
}

void append(std::vector<Operator>& all, std::vector<Operator> more) {
  for (Operator& op : more) all.push_back(std::move(op));
}

// The biases of one tower, by distance, which all its layers share.
Operator relative_bias_operator(const std::string& tower, const TransformerConfig& config,
                                const RankSizes& sizes, int64_t length) {
  const double heads = static_cast<double>(config.heads) / sizes.shards;
  const double biases = heads * static_cast<double>(2 * length - 1) * sizeof(float);
  return {.name = tower + ".relative_position",
          .kind = Operator::Kind::embedding,
          .bytes = biases,
          .saved = biases,
          .forward_peak = biases,
          .backward_peak = 2.0 * biases};
}

std::vector<Operator> stage_operators(const T5Config& config, RankBatch source, int64_t decoder_length,
                                      bool padded) {
  const T5Stage here(config, source.stage);
  source.segmented = padded;
  RankBatch target = source;
  target.batch = {.samples = source.batch.samples, .sequence_length = decoder_length};
  target.segmented = false;
  const RankSizes source_sizes(config.encoder, source), target_sizes(config.decoder, target);
  std::vector<Operator> all;
  if (here.embeds_source) all.push_back(embedding_operator(config.encoder, source_sizes));
  const auto relative = [](const TransformerConfig& tower) {
    return tower.position == PositionEmbedding::relative;
  };
  if (here.encoder.count > 0) {
    if (relative(config.encoder)) {
      all.push_back(
          relative_bias_operator("encoder", config.encoder, source_sizes, source.batch.sequence_length));
    }
    append(all,
           stack_operators("encoder.layers", config.encoder, source, here.encoder.first, here.encoder.count));
  }
  if (here.ends_encoder)
    all.push_back(norm_operator("encoder.final_layernorm", config.encoder, source_sizes));
  if (here.embeds_target) all.push_back(embedding_operator(config.decoder, target_sizes));
  if (here.decoder.count > 0) {
    if (relative(config.decoder))
      all.push_back(relative_bias_operator("decoder", config.decoder, target_sizes, decoder_length));
    append(all, decoder_operators({config.decoder, target, target_sizes, source_sizes}, here.decoder));
  }
  if (!here.head) return all;
  all.push_back(norm_operator("decoder.final_layernorm", config.decoder, target_sizes));
  all.push_back(output_layer_operator(target, target_sizes,
                                      {.width = static_cast<double>(config.decoder.hidden),
                                       .columns = static_cast<double>(config.padded_vocabulary)}));
  return all;
}

}  // namespace

OperatorsOf t5_operators(const T5Config& config, const BatchSchema& schema) {
  const Column* const target = find_column(schema, "decoder_tokens");
  const int64_t length = target ? target->numel() : 0;
  const bool padded = find_column(schema, "encoder_length") != nullptr;
  return [config, length, padded](const RankBatch& batch) {
    return stage_operators(config, batch, length, padded);
  };
}

}  // namespace teratron
