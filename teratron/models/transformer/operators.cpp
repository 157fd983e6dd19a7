#include "teratron/models/transformer/operators.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "teratron/kernels/gemm/launchers.h"
#include "teratron/models/transformer/layer_operators.h"
#include "teratron/models/transformer/layer_stack.h"

namespace teratron {

namespace {

constexpr double row_id = 8.0;    // bytes
constexpr double id_bytes = 8.0;  // of a token

// The saved input of a unit: the first norm's, unless ranks share it.
void share_input(Operator& input, Operator& norm, const RankSizes& sizes, bool distributed) {
  input.saved = sizes.residual_stream / (distributed ? sizes.shards : 1.0);
  if (distributed) return;
  for (double* bytes : {&norm.saved, &norm.forward_peak, &norm.backward_peak})
    *bytes -= sizes.residual_stream;
}

Operator dropout_rows(const std::string& prefix, const TransformerConfig& config, const RankSizes& sizes) {
  const double heads = as_real(config.heads) / sizes.shards;
  Operator op{.name = prefix + ".dropout_rows", .kind = Operator::Kind::pointwise};
  if (config.hidden_dropout > 0.0) op.saved += sizes.local_tokens * row_id;
  if (config.attention_dropout > 0.0) op.saved += sizes.tokens * heads * row_id;
  op.forward_peak = op.backward_peak = op.saved;
  return op;
}

std::vector<Operator> unit_operators(const std::string& prefix, const TransformerConfig& config,
                                     const RankBatch& batch, const LayerUnit& unit) {
  const RankSizes sizes(config, batch);
  std::vector<Operator> all;
  for (int64_t layer = unit.layers.first; layer < unit.layers.first + unit.layers.count; ++layer) {
    const std::string name = fmt::format("{}.{}", prefix, layer);
    std::vector<Operator> operators = layer_operators(name, config, batch, layer);
    if (unit.recomputed && layer == unit.layers.first) {
      all.push_back({.name = name + ".input"});
      share_input(all.back(), operators.front(), sizes,
                  config.recompute.distribute_inputs && sizes.shards > 1.0);
    }
    for (Operator& op : operators) {
      if (unit.recomputed) {
        op.recompute_unit = unit.layers.first;
        op.backward_peak += sizes.residual_stream;  // the unit's output, computed again
      }
      all.push_back(std::move(op));
    }
  }
  return all;
}

// Whether the stack's first input on the stage is a message, which the pipeline holds for its gradient.
bool is_received(const StageSpec& stage, int64_t first) {
  return first > 0 || (!stage.embedding && stage.first_layer == 0);
}

// `held`: bytes that the step saves and something else holds.
void set_offload(std::span<Operator> operators, const OffloadStep& step, double min_bytes, double held) {
  for (Operator& op : operators) {
    op.offload = step;
    op.kept = op.saved < min_bytes ? op.saved : 0.0;
    const double input = std::min(held, op.saved);  // the first operators'
    op.kept = std::max(op.kept, input);
    held -= input;
  }
}

}  // namespace

RankSizes::RankSizes(const TransformerConfig& config, const RankBatch& batch)
    : samples(as_real(batch.batch.samples)),
      queries(as_real(batch.batch.sequence_length) / as_real(batch.context_parallel)),
      keys(as_real(batch.batch.sequence_length)),
      tokens(samples * queries),
      local_tokens(batch.sequence_parallel ? tokens / as_real(batch.tensor_parallel) : tokens),
      element(as_real(size_of(batch.dtype))),
      statistic(batch.dtype == Dtype::f64 ? 8.0 : 4.0),
      shards(as_real(batch.tensor_parallel)),
      gathers(batch.sequence_parallel && batch.tensor_parallel > 1),
      fp8_weight_gradients(batch.fp8_weight_gradients),
      residual_stream(local_tokens * as_real(config.hidden) * (config.fp32_residual ? 4.0 : element)),
      hidden(local_tokens * as_real(config.hidden) * element),
      gemm_workspace(batch.gpu ? as_real(cuda::gemm_workspace) : 0.0) {}

double RankSizes::column_input(double width, bool fp8) const {
  return gathers ? local_tokens * width * element : row_input(width, fp8);
}

double RankSizes::row_input(double width, bool fp8) const {
  return tokens * width * (fp8 && fp8_weight_gradients ? 1.0 : element);
}

Operator gemm_operator(std::string name, const RankSizes& sizes, double in, double out) {
  return {.name = std::move(name),
          .kind = Operator::Kind::gemm,
          .flops = 2.0 * sizes.tokens * in * out,
          .bytes = (sizes.tokens * (in + out) + in * out) * sizes.element};
}

Operator norm_operator(std::string name, const TransformerConfig& config, const RankSizes& sizes) {
  const double statistics =
      sizes.local_tokens * sizes.statistic * (config.norm.kind == NormKind::rms ? 1.0 : 2.0);
  const double x = sizes.residual_stream, y = sizes.hidden, wide = x > y ? x : 0.0;  // before the cast
  return {.name = std::move(name),
          .kind = Operator::Kind::normalization,
          .bytes = x + y,
          .saved = x + statistics,
          .forward_peak = x + statistics + y + wide,
          .backward_peak = x + statistics + y + wide + 2.0 * x};  // gradients of y, the residual and x
}

Operator embedding_operator(const TransformerConfig& config, const RankSizes& sizes) {
  const bool drops = config.hidden_dropout > 0.0, wide = sizes.residual_stream > sizes.hidden;
  const double whole = sizes.tokens * static_cast<double>(config.hidden) * sizes.element;
  const double ids = sizes.tokens * id_bytes;
  // Ids elsewhere are looked up as row 0 and masked.
  const double masked = sizes.shards > 1.0 ? ids + sizes.tokens : 0.0;
  // Backward sorts ids and rows, and sums in fp32 over chunks of 32 tokens.
  const double sorting = 4.0 * ids + whole / sizes.element * 4.0 / 16.0;
  const double saved = masked + (drops ? sizes.local_tokens * id_bytes : 0.0);
  return {.name = "embedding",
          .kind = Operator::Kind::embedding,
          .bytes = 2.0 * whole,
          .saved = saved,
          .forward_peak = saved + whole + (wide || drops ? 2.0 : 1.0) * sizes.residual_stream,
          .backward_peak = saved + 2.0 * sizes.residual_stream + (wide ? whole : 0.0) + sorting};
}

Operator output_layer_operator(const RankBatch& batch, const RankSizes& sizes,
                               const OutputLayerOptions& options) {
  const double width = options.width, columns = options.columns / sizes.shards, chunks = options.chunks;
  const bool fp8 = batch.fp8 && options.fp8;
  Operator op = gemm_operator("output_layer", sizes, width, columns);
  op.kind = Operator::Kind::loss;
  op.fp8 = fp8;
  const double rows = sizes.tokens / chunks, logits = rows * columns * sizes.element;
  op.flops /= chunks;
  op.bytes = op.bytes / chunks + 2.0 * logits;
  // One kernel replaces the logits by their gradient (kernels/loss/cross_entropy.h); else backward does, from
  // statistics.
  const bool fused = batch.gpu && batch.dtype == Dtype::bf16 && sizes.shards == 1.0 && !fp8;
  op.saved = sizes.column_input(width, fp8) / chunks + logits + (fused ? 0.0 : rows * 2.0 * sizes.statistic);
  const double whole = sizes.tokens * width * sizes.element;  // gradients of all chunks
  const double gathered = sizes.gathers ? whole / chunks : 0.0;
  op.forward_peak = op.saved + sizes.gemm_workspace + gathered;
  op.backward_peak = op.forward_peak + (fp8 ? std::max(whole, 2.0 * rows * columns) : whole);
  return op;
}

std::vector<Operator> stack_operators(const std::string& prefix, const TransformerConfig& config,
                                      const RankBatch& batch, int64_t first, int64_t count) {
  const RankSizes sizes(config, batch);
  const std::vector<LayerUnit> units = layer_units(config.recompute, count);
  const OffloadSchedule schedule = offload_schedule(units, config.offload.layers);
  std::vector<Operator> all = {dropout_rows(prefix, config, sizes)};
  for (int64_t step = 0; LayerUnit unit : units) {
    unit.layers.first += first;
    std::vector<Operator> operators = unit_operators(prefix, config, batch, unit);
    if (schedule.offloaded > 0) {
      const double held = step == 0 && is_received(batch.stage, first) ? sizes.residual_stream : 0.0;
      set_offload(operators, {schedule, step}, static_cast<double>(config.offload.min_bytes), held);
    }
    for (Operator& op : operators) all.push_back(std::move(op));
    ++step;
  }
  return all;
}

}  // namespace teratron
