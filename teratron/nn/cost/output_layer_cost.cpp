#include "teratron/nn/cost/output_layer_cost.h"

#include <algorithm>

#include <fmt/format.h>

#include "teratron/nn/cost/linear_cost.h"

namespace teratron {

namespace {

// One chunk, which keeps its input.
Operator output_layer_operator(const OutputLayerOptions& options, const RankSizes& sizes) {
  const RankBatch& batch = sizes.batch;
  const double width = as_real(options.width), columns = as_real(options.columns) / sizes.shards;
  const double chunks = as_real(options.chunks);
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
  op.saved = column_input(sizes, width, fp8) / chunks + logits + (fused ? 0.0 : rows * 2.0 * sizes.statistic);
  const double whole = sizes.tokens * width * sizes.element;  // gradients of all chunks
  op.forward_peak = op.saved + sizes.gemm_workspace + sizes.gathered(whole / chunks);
  op.backward_peak = op.forward_peak + (fp8 ? std::max(whole, 2.0 * rows * columns) : whole);
  return op;
}

}  // namespace

std::vector<Operator> output_layer_operators(const OutputLayerOptions& options, const RankSizes& sizes) {
  Operator op = output_layer_operator(options, sizes);
  if (options.chunks == 1) return {op};
  const double input = sizes.hidden / as_real(options.chunks);
  op.add_saved(-input);
  op.recompute_unit = 0;
  std::vector<Operator> all;
  for (int64_t chunk = 0; chunk < options.chunks; ++chunk) {
    all.push_back({.name = fmt::format("output_layer.input.{}", chunk), .saved = input});
    all.push_back(op);
  }
  return all;
}

}  // namespace teratron
