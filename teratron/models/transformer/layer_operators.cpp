#include "teratron/models/transformer/layer_operators.h"

#include <algorithm>

#include "teratron/comm/nccl/symmetric_pool.h"
#include "teratron/models/transformer/expert_operators.h"
#include "teratron/models/transformer/layer_stack.h"
#include "teratron/nn/qkv.h"

namespace teratron {

namespace {

// Casting an output gradient writes it twice in FP8, as it is and transposed.
constexpr double cast_bytes = 2.0;

class LayerOperators {
 public:
  LayerOperators(std::string prefix, const TransformerConfig& config, const RankBatch& batch, int64_t layer)
      : prefix_(std::move(prefix)),
        config_(config),
        batch_(batch),
        sizes_(config, batch),
        layer_(layer),
        fp8_(batch.fp8 && layer >= config.bf16_layers_at_start &&
             layer < config.layers - config.bf16_layers_at_end),
        heads_(as_real(config.heads) / sizes_.shards),
        groups_(as_real(config.query_groups) / sizes_.shards),
        q_(sizes_.tokens * heads_ * as_real(config.kv_channels) * sizes_.element),
        kv_(sizes_.tokens * groups_ * as_real(config.kv_channels) * sizes_.element) {}

  std::vector<Operator> all() const {
    std::vector<Operator> operators = with_dense_mlp();
    if (!config_.experts.in(layer_)) return operators;
    const auto found = std::ranges::find(operators, prefix_ + ".mlp", &Operator::name);
    RankBatch batch = batch_;
    batch.fp8 = fp8_;
    const std::vector<Operator> experts = experts_operators(prefix_ + ".mlp", config_, batch, layer_);
    operators.insert(operators.erase(found), experts.begin(), experts.end());
    return operators;
  }

 private:
  std::vector<Operator> with_dense_mlp() const {
    const Operator attention_norm = norm_operator(prefix_ + ".input_layernorm", config_, sizes_);
    Operator mlp_norm = norm_operator(prefix_ + ".pre_mlp_layernorm", config_, sizes_);
    if (config_.norm_outputs)
      return {qkv(), split_qkv(), core_attention(), projection(), attention_norm, mlp(), mlp_norm};
    if (!config_.parallel_residual)
      return {attention_norm, qkv(), split_qkv(), core_attention(), projection(), mlp_norm, mlp()};
    // Both norms save the same input.
    for (double* bytes : {&mlp_norm.saved, &mlp_norm.forward_peak, &mlp_norm.backward_peak})
      *bytes -= sizes_.residual_stream;
    return {attention_norm, mlp_norm, qkv(), split_qkv(), core_attention(), projection(), mlp()};
  }

  // The backends of nn/attention/attention.cpp by what they save of queries, keys, values and the output.
  enum class Backend : uint8_t {
    fused,      // as they are
    copied,     // copies with contiguous samples; the output layer reads another copy
    flash_cpu,  // keys and values repeated for every query head of their group
    math        // the same, and the scores; the output layer reads a copy
  };

  bool has_plain_scores() const {
    return config_.attention_dropout == 0.0 && config_.position != PositionEmbedding::alibi &&
           config_.position != PositionEmbedding::relative;
  }
  Backend backend() const {
    const int64_t width = config_.kv_channels;
    const bool is_half = batch_.dtype == Dtype::bf16 || batch_.dtype == Dtype::f16;
    const bool has_packs = batch_.gpu && is_half && width % 8 == 0;
    if (!has_plain_scores()) return has_packs && width <= 128 ? Backend::fused : Backend::math;
    if (!batch_.gpu) return Backend::flash_cpu;
    if (!has_packs || width > 256) return Backend::math;
    return batch_.segmented && batch_.batch.samples > 1 ? Backend::copied : Backend::fused;
  }

  double gemm_in() const { return as_real(config_.hidden); }
  double cast(double bytes) const { return fp8_ ? cast_bytes * bytes / sizes_.element : 0.0; }
  double gathered(double bytes) const { return sizes_.gathers ? bytes : 0.0; }
  double whole_hidden() const { return sizes_.tokens * as_real(config_.hidden) * sizes_.element; }
  double qkv_bytes() const { return q_ + 2.0 * kv_; }
  // Whether queries, keys and values are views of their projection.
  bool is_view() const {
    return queries_are_view(static_cast<int64_t>(groups_), config_.heads / config_.query_groups);
  }
  bool repeats_groups() const {
    return config_.query_groups < config_.heads &&
           (backend() == Backend::flash_cpu || backend() == Backend::math);
  }
  double repeated() const { return repeats_groups() ? 2.0 * q_ : 0.0; }
  bool recomputes_core() const {
    return config_.recompute.granularity == RecomputeConfig::Granularity::attention_core &&
           backend() == Backend::math;
  }
  double scores() const { return sizes_.samples * heads_ * sizes_.queries * sizes_.keys * sizes_.element; }

  Operator qkv() const {
    const double width = (heads_ + 2.0 * groups_) * as_real(config_.kv_channels);
    Operator op = gemm_operator(prefix_ + ".self_attention.linear_qkv", sizes_, gemm_in(), width);
    op.fp8 = fp8_;
    op.saved = sizes_.column_input(gemm_in(), fp8_);
    const double input = op.saved + gathered(whole_hidden()) + sizes_.gemm_workspace;
    op.forward_peak = input + cast(whole_hidden()) + qkv_bytes();
    op.backward_peak = input + sizes_.residual_stream + qkv_bytes() + cast(qkv_bytes()) + whole_hidden();
    return op;
  }

  // RoPE, query-key norms and the queries, keys and values that attention keeps.
  Operator split_qkv() const {
    Operator op{.name = prefix_ + ".self_attention.qkv", .kind = Operator::Kind::pointwise};
    const double rotated = q_ + kv_;
    double inputs = qkv_bytes() + (is_view() ? 0.0 : q_);  // of attention
    if (config_.qk_norm) {
      const double rows = sizes_.tokens * (config_.qk_norm_all_heads ? 2.0 : heads_ + groups_);
      const double statistics = config_.norm.kind == NormKind::rms ? 1.0 : 2.0;
      op.saved = rotated + rows * sizes_.statistic * statistics;
      inputs = qkv_bytes() + rotated;
      op.bytes += 3.0 * rotated;
    }
    // Copies for every head take the place of keys and values; queries that are a view keep the projection.
    if (repeats_groups() && !recomputes_core())
      inputs = (config_.qk_norm || !is_view() ? q_ : qkv_bytes()) + repeated();
    if (backend() == Backend::copied) inputs = qkv_bytes();
    op.saved += inputs;
    if (!is_view()) op.bytes += 2.0 * q_;
    op.forward_peak = op.saved + qkv_bytes();
    op.backward_peak = op.saved - inputs + sizes_.residual_stream + 2.0 * qkv_bytes();
    return op;
  }

  Operator core_attention() const {
    Operator op{.name = prefix_ + ".self_attention.core_attention", .kind = Operator::Kind::attention};
    const double squares = batch_.batch.squared_lengths.value_or(sizes_.samples * sizes_.keys * sizes_.keys) /
                           as_real(batch_.context_parallel);
    op.flops = 4.0 * heads_ * as_real(config_.kv_channels) * squares;
    op.masked_flops = config_.mask == Mask::causal ? op.flops / 2.0 : 0.0;
    op.bytes = qkv_bytes() + q_;
    const double gradients = sizes_.residual_stream + q_ + qkv_bytes() + repeated();
    if (backend() == Backend::math) {
      if (recomputes_core()) op.recompute_unit = layer_;
      const bool drops = config_.attention_dropout > 0.0;
      const bool masks = batch_.segmented || !config_.windows.empty();
      op.bytes += 4.0 * scores();
      op.saved = (drops ? 2.0 * scores() : scores()) + (recomputes_core() ? repeated() : 0.0);
      op.forward_peak = op.saved + scores() + (masks ? scores() / sizes_.element / heads_ : 0.0) + 2.0 * q_;
      op.backward_peak = 3.0 * scores() + gradients + (recomputes_core() ? q_ : 0.0);
      return op;
    }
    const double logsumexp = sizes_.tokens * heads_ * sizes_.statistic;
    op.saved = q_ + logsumexp;
    op.forward_peak = op.saved + q_;
    // Libraries' fused backwards sum the gradient of queries in fp32.
    const double sums = has_plain_scores() ? q_ / sizes_.element * 4.0 : 0.0;
    op.backward_peak = op.saved + gradients + sums + 2.0 * logsumexp;
    if (batch_.context_parallel > 1) add_context_parallel(op);
    return op;
  }

  // What context parallelism holds besides: a block of keys and values to send and windows for those that
  // arrive, or all keys and values; queries and outputs of blocks, or of a part of the heads.
  void add_context_parallel(Operator& op) const {
    const double ranks = as_real(batch_.context_parallel);
    const bool adds_two = ranks == 2.0 && !batch_.segmented;
    const double wide = adds_two ? 0.0 : qkv_bytes() / sizes_.element * 4.0;  // sums of gradients
    const auto comm = config_.context_parallel_comm.empty()
                          ? ContextParallelComm::p2p
                          : config_.context_parallel_comm.at(static_cast<size_t>(layer_));
    if (comm == ContextParallelComm::a2a) {
      op.forward_peak += qkv_bytes() + q_;
      op.backward_peak += qkv_bytes() + q_;
    } else if (comm == ContextParallelComm::all_gather || !has_plain_scores()) {
      op.forward_peak += 2.0 * kv_ * ranks + q_;
      op.backward_peak += 4.0 * kv_ * ranks + q_;
    } else {
      op.forward_peak += 2.0 * kv_ + 2.0 * q_;
      op.backward_peak += 2.0 * kv_ + wide + qkv_bytes();
      const size_t window = SymmetricPool::round_size(static_cast<size_t>(2.0 * kv_));
      op.windows = std::min(ranks - 1.0, batch_.segmented ? 3.0 : 4.0) * static_cast<double>(window);
    }
  }

  // What the residual stream's gradient needs on its way into a row layer.
  double incoming_gradient() const {
    const bool wide = sizes_.residual_stream > sizes_.hidden;
    return sizes_.residual_stream + (config_.hidden_dropout > 0.0 ? sizes_.residual_stream : 0.0) +
           (wide ? sizes_.hidden : 0.0) + gathered(whole_hidden());
  }

  // Its output, and after dropout or a reduction the sum with the residual.
  double row_output() const {
    const bool fused =
        config_.hidden_dropout == 0.0 && sizes_.shards == 1.0 && sizes_.residual_stream == sizes_.hidden;
    return sizes_.residual_stream + (fused ? 0.0 : whole_hidden());
  }

  Operator projection() const {
    const double width = heads_ * as_real(config_.kv_channels);
    Operator op = gemm_operator(prefix_ + ".self_attention.linear_proj", sizes_, width, gemm_in());
    op.fp8 = fp8_;
    const bool is_saved_by_attention = !(fp8_ && sizes_.fp8_weight_gradients) &&
                                       (backend() == Backend::fused || backend() == Backend::flash_cpu);
    op.saved = is_saved_by_attention ? 0.0 : sizes_.row_input(width, fp8_);
    op.forward_peak = op.saved + sizes_.gemm_workspace + row_output();
    op.backward_peak = op.saved + sizes_.gemm_workspace + incoming_gradient() + cast(whole_hidden()) + q_;
    return op;
  }

  Operator mlp() const {
    const double ffn = as_real(config_.ffn_hidden) / sizes_.shards;
    const double wide = ffn * as_real(parts_of(config_.activation));
    Operator op = gemm_operator(prefix_ + ".mlp", sizes_, gemm_in(), wide);
    const Operator fc2 = gemm_operator("", sizes_, ffn, gemm_in());
    op.fp8 = fp8_;
    op.flops += fc2.flops;
    op.bytes += fc2.bytes;
    const double x = sizes_.column_input(gemm_in(), fp8_), a = sizes_.row_input(ffn, fp8_);
    const double z = sizes_.tokens * wide * sizes_.element, da = sizes_.tokens * ffn * sizes_.element;
    op.saved = x + z + a;
    op.forward_peak = op.saved + sizes_.gemm_workspace + gathered(whole_hidden()) + row_output();
    // mlp.cpp frees a before dz is computed, unless dy is still being gathered; z after it. In FP8 dz exists
    // in the model's dtype while there are no scales yet.
    const bool fused = batch_.gpu && !fp8_ && batch_.dtype == Dtype::bf16;
    const double of_fc2 = op.saved + (fp8_ ? cast(whole_hidden()) + da : 0.0);
    const double of_activation = x + 2.0 * z + (fused ? 0.0 : da) + gathered(fp8_ ? 0.0 : a) + cast(z);
    const double of_fc1 = x + (fp8_ ? cast(z) : z) + whole_hidden() + gathered(whole_hidden());
    op.backward_peak =
        sizes_.gemm_workspace + incoming_gradient() + std::max({of_fc2, of_activation, of_fc1});
    return op;
  }

  std::string prefix_;
  const TransformerConfig& config_;
  const RankBatch& batch_;
  RankSizes sizes_;
  int64_t layer_;
  bool fp8_;
  double heads_, groups_;  // of this rank
  double q_, kv_;          // bytes of queries, and of keys or values
};

}  // namespace

std::vector<Operator> layer_operators(const std::string& prefix, const TransformerConfig& config,
                                      const RankBatch& batch, int64_t layer) {
  return LayerOperators(prefix, config, batch, layer).all();
}

}  // namespace teratron
