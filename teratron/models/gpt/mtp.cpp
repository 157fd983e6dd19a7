#include "teratron/models/gpt/mtp.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"
#include "teratron/models/transformer/expert_metrics.h"
#include "teratron/nn/moe/load_balancing.h"

namespace teratron {

namespace {

constexpr int64_t columns = 2;  // of a depth: the sum of its losses, and how many they are

// What a depth reads, [S, B] of this rank.
struct Targets {
  at::Tensor tokens_SB, labels_SB, mask_SB;
  at::Tensor count;  // of the mask, of all context-parallel ranks
};

// x with the rows from `by` on first; the last ones are zeros.
at::Tensor shifted(const at::Tensor& x_SB, int64_t by) {
  const at::Tensor y = at::zeros_like(x_SB);
  const int64_t rows = x_SB.size(0) - by;
  if (rows > 0) y.narrow(0, 0, rows).copy_(x_SB.narrow(0, by, rows));
  return y;
}

// Shifts whole samples, so that what a rank reads may be another's.
class Shift {
 public:
  explicit Shift(const MicroBatch& batch)
      : context_(batch.context_parallel),
        tokens_(whole(batch["tokens"])),
        labels_(whole(batch["labels"]).clamp_min(0)),
        mask_(whole(batch["loss_mask"])),
        document_(segments_of_tokens({batch["cu_seqlens"]}, tokens_.size(0), tokens_.size(1))) {}

  Targets by(int64_t positions) const {
    at::Tensor mask = shifted(mask_, positions);
    if (document_.defined()) mask = mask * shifted(document_, positions).eq(document_).to(mask.scalar_type());
    return {own(shifted(tokens_, positions)), own(shifted(labels_, positions)), own(mask), mask.sum()};
  }
  // This rank's tokens.
  at::Tensor count(int64_t positions) const { return by(positions).mask_SB.sum().to(at::kDouble); }

 private:
  at::Tensor whole(const at::Tensor& x_SB) const {
    return context_.size() > 1 ? gather_tokens(x_SB, context_) : x_SB;
  }
  at::Tensor own(const at::Tensor& x_SB) const {
    return context_.size() > 1 ? cut_tokens(x_SB, context_) : x_SB;
  }

  ContextParallel context_;
  at::Tensor tokens_, labels_, mask_, document_;
};

template <typename T>
void repeat_last(std::vector<T>& list, int64_t count) {
  if (!list.empty()) list.insert(list.end(), static_cast<size_t>(count), T(list.back()));
}

}  // namespace

void add_mtp_layers(GPTConfig& config) {
  repeat_last(config.experts.layers, config.mtp_layers);
  repeat_last(config.windows, config.mtp_layers);
  repeat_last(config.no_rope, config.mtp_layers);
  repeat_last(config.context_parallel_comm, config.mtp_layers);
}

at::Tensor mtp_loss_counts(const MicroBatch& batch, int64_t depths) {
  const at::NoGradGuard no_grad;
  const Shift shift(batch);
  std::vector<at::Tensor> counts;
  for (int64_t i = 0; i <= depths; ++i) counts.push_back(shift.count(i));
  return at::stack(counts);
}

LayerSums with_mtp_sums(LayerSums sums, const GPTConfig& config) {
  if (config.mtp_layers == 0 || !config.output_layer) return sums;
  const int64_t before = sums.count, depths = config.mtp_layers;
  const auto read = [inner = sums.read, before, depths](std::span<const double> values) {
    const auto others = values.first(static_cast<size_t>(before));
    LayerMetrics metrics = inner ? inner(others) : LayerMetrics{};
    for (int64_t i = 0; i < depths; ++i) {
      const auto own = values.subspan(static_cast<size_t>(before + columns * i), columns);
      metrics.losses.emplace_back(fmt::format("mtp_{} loss", i + 1), own[0] / std::max(own[1], 1.0));
    }
    return metrics;
  };
  return {before + columns * depths, read};
}

MultiTokenPrediction::MultiTokenPrediction(const Scope& scope, const GPTConfig& config,
                                           const TensorParallel& parallel, const Mesh& mesh)
    : factor_(config.mtp_loss_factor / static_cast<double>(config.mtp_layers)),
      first_sum_(with_mtp_sums(expert_sums(config.experts), config).count - columns * config.mtp_layers) {
  for (int64_t i = 0; i < config.mtp_layers; ++i) {
    const Scope own = scope / "layers" / std::to_string(i);
    const auto norm = [&](const char* name) {
      return Norm(own / name, config.hidden, config.norm, parallel, config.norm_weights);
    };
    depths_.push_back({norm("enorm"), norm("hnorm"),
                       ColumnLinear(own / "eh_proj",
                                    {.in = 2 * config.hidden,
                                     .out = config.hidden,
                                     .bias = false,
                                     .init = weight_init(config),
                                     .replicated = true},
                                    parallel),
                       std::make_unique<TransformerLayer>(own / "mtp_model_layer", config, config.layers + i,
                                                          parallel, mesh),
                       norm("final_layernorm")});
  }
}

bool MultiTokenPrediction::runs(const MicroBatch& batch) {
  return batch.training && at::GradMode::is_enabled() && batch.auxiliary.scale.defined();
}

at::Tensor MultiTokenPrediction::attach_losses(const at::Tensor& hidden_SBH, const MicroBatch& batch,
                                               const LayerContext& context, const Shared& shared) {
  const Shift shift(batch);
  const AuxiliaryLosses& auxiliary = batch.auxiliary;
  const at::Tensor& counts = auxiliary.loss_counts;
  TERATRON_ASSERT(!auxiliary.per_token || counts.defined(), "a loss per token without the step's counts");
  at::Tensor h_SBH = hidden_SBH, total;
  for (size_t i = 0; i < depths_.size(); ++i) {
    Depth& depth = depths_[i];
    const Targets targets = shift.by(static_cast<int64_t>(i) + 1);
    const at::Tensor e_SBH = depth.embedding_norm.forward(shared.embed(targets.tokens_SB));
    const at::Tensor both = at::cat({e_SBH, depth.hidden_norm.forward(h_SBH)}, -1);
    const at::Tensor z_SBH = depth.projection.forward(both).x_SBH.to(hidden_SBH.scalar_type());
    h_SBH = depth.final_norm.forward_with_residual(depth.layer->forward({z_SBH}, context, nullptr)).normed;
    const at::Tensor sum = (shared.token_losses(h_SBH, targets.labels_SB) * targets.mask_SB).sum();
    // A loss per token is its sum times what makes it a mean over the step's tokens, by which all gradients
    // are divided.
    const at::Tensor term =
        auxiliary.per_token
            ? sum * (counts[0] / counts[static_cast<int64_t>(i) + 1].clamp_min(1.0)).to(sum.scalar_type())
            : sum / targets.count.clamp_min(1);
    total = total.defined() ? total + term : term;
    if (auxiliary.sums.defined() && auxiliary.sums.numel() > 0) {
      const at::Tensor own =
          auxiliary.sums.narrow(0, first_sum_ + columns * static_cast<int64_t>(i), columns);
      own.add_(at::stack({sum.detach(), targets.mask_SB.sum()}).to(own.scalar_type()));
    }
  }
  return attach_loss(hidden_SBH, total, auxiliary.scale * factor_);
}

}  // namespace teratron
