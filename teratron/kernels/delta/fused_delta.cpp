#include "teratron/kernels/delta/fused_delta.h"

#include <ATen/ATen.h>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/delta/launchers.h"
#include "teratron/kernels/mamba/fused_parts.h"
#include "teratron/kernels/mamba/mamba_parts.h"

namespace teratron::delta {

using mamba::as_wide;
using mamba::float_or_null;
using mamba::FusedConv;
using mamba::FusedGatedNorm;
using mamba::readable_weights;
using mamba::weight_vector;

namespace {

cuda::TokenRows columns_of(const at::Tensor& rows, int64_t column) {
  return {static_cast<const char*>(address(rows)) + column * rows.element_size(), rows.stride(1)};
}

// For rows [..., width] and y [..., N V].
FusedGatedNorm norm_of(const DeltaOptions& options, const at::Tensor& rows, const at::Tensor& y,
                       const at::Tensor& weight) {
  return {.shape = {.rows = rows.numel() / rows.size(-1),
                    .groups = static_cast<int>(options.value_heads),
                    .width = static_cast<int>(options.value_dim),
                    .shared_weight = true,
                    .gate = cuda::GatePlace::after_norm,
                    .dtype = dtype_of(rows),
                    .eps = static_cast<float>(options.norm_eps)},
          .y = y,
          .z = {static_cast<const char*>(address(rows)) + options.channels() * rows.element_size(),
                rows.size(-1)},
          .weight = readable_weights(weight, rows.scalar_type()),
          .stream = current_stream(rows)};
}

// The gated delta rule of one input, after its convolution.
class FusedRule {
 public:
  FusedRule(const DeltaInput& input, const DeltaWeights& weights, const DeltaOptions& options);

  struct Forward {
    at::Tensor y, states, corrected, last;
  };
  /// `for_backward`: with the states and the corrected values of all chunks.
  Forward forward(bool for_backward) const;
  /// dy: of Forward::y. Fills the columns of dqkvzba but z's.
  DeltaGradients backward(const Forward& forward, const at::Tensor& dy, const at::Tensor& dlast,
                          const at::Tensor& dqkvzba) const;

  at::Tensor conv_after() const { return conv_.after(); }
  at::Tensor empty_input() const { return at::empty_like(rows_); }
  cuda::TokenRows z_of(const at::Tensor& rows) const { return columns_of(rows, options_.channels()); }
  FusedGatedNorm norm(const at::Tensor& y, const at::Tensor& weight) const {
    return norm_of(options_, rows_, y, weight);
  }

 private:
  at::TensorOptions wide() const { return rows_.options().dtype(at::kFloat); }
  cuda::ScanTokens tokens() const {
    auto* const values = decays_.mutable_data_ptr<float>();
    const int64_t each = decays_.stride(0);
    return {values, values + each, values + 2 * each, values + 3 * each,
            starts_.defined() ? starts_.mutable_data_ptr<int>() : nullptr};
  }
  cuda::DeltaGateArgs gates(const at::Tensor& rows) const {
    const int64_t b = options_.channels() + options_.values();
    return {.b = columns_of(rows, b),
            .a = columns_of(rows, b + options_.value_heads),
            .dt_bias = weight_vector(dt_bias_),
            .A_log = weight_vector(A_log_),
            .beta_scale = static_cast<float>(options_.beta_scale),
            .document = document_.defined() ? document_.const_data_ptr<int64_t>() : nullptr};
  }
  cuda::DeltaChunkParts parts() const {
    return {address(inverse_), address(scores_), lengths_.mutable_data_ptr<float>()};
  }
  cuda::TokenRows qkv() const { return columns_of(qkv_, 0); }
  at::Tensor empty_values() const {
    return at::empty({rows_.size(0), rows_.size(1), options_.values()}, rows_.options());
  }
  at::Tensor empty_states() const {
    return at::empty({shape_.batch, shape_.chunks, shape_.heads, shape_.head_dim, shape_.state},
                     rows_.options());
  }
  at::Tensor empty_last() const {
    return at::empty({shape_.batch, shape_.heads, shape_.state, shape_.head_dim}, wide());
  }

  const DeltaOptions& options_;
  at::Tensor rows_, document_, initial_;
  DeviceStream stream_;
  at::Tensor dt_bias_, A_log_;
  FusedConv conv_;
  cuda::ScanShape shape_;
  at::Tensor decays_, starts_, qkv_, inverse_, scores_, lengths_;
};

FusedRule::FusedRule(const DeltaInput& input, const DeltaWeights& weights, const DeltaOptions& options)
    : options_(options),
      rows_(input.qkvzba_SB.contiguous()),
      document_(input.document_SB.defined() ? input.document_SB.contiguous() : at::Tensor()),
      initial_(input.before.rule.defined() ? as_wide(input.before.rule).contiguous() : at::Tensor()),
      stream_(current_stream(rows_)),
      dt_bias_(readable_weights(weights.dt_bias, rows_.scalar_type())),
      A_log_(readable_weights(weights.A_log, rows_.scalar_type())),
      conv_(rows_.narrow(2, 0, options.channels()), input.before.conv, document_,
            {weights.conv_weight, at::Tensor()}) {
  const int64_t chunks = (rows_.size(0) + cuda::scan_chunk - 1) / cuda::scan_chunk;
  shape_ = {.batch = static_cast<int>(rows_.size(1)),
            .tokens = static_cast<int>(rows_.size(0)),
            .chunks = static_cast<int>(chunks),
            .heads = static_cast<int>(options.value_heads),
            .groups = static_cast<int>(options.key_heads),
            .head_dim = static_cast<int>(options.value_dim),
            .state = static_cast<int>(options.key_dim),
            .dtype = dtype_of(rows_)};
  const int64_t padded = chunks * cuda::scan_chunk;
  decays_ = at::empty({4, shape_.batch, shape_.heads, padded}, wide());
  if (document_.defined()) starts_ = at::empty({shape_.batch, padded}, wide().dtype(at::kInt));
  cuda::delta_gates(shape_, gates(rows_), tokens(), stream_);
  qkv_ = conv_.forward(stream_);
  inverse_ =
      at::empty({shape_.batch, chunks, shape_.heads, cuda::scan_chunk, cuda::scan_chunk}, rows_.options());
  scores_ = at::empty_like(inverse_);
  lengths_ = at::empty({2, shape_.batch, shape_.groups, padded}, wide());
  cuda::delta_chunk_parts(shape_, tokens(), qkv(), parts(), stream_);
}

FusedRule::Forward FusedRule::forward(bool for_backward) const {
  Forward out{.y = empty_values(), .last = empty_last()};
  if (for_backward) {
    out.states = empty_states();
    out.corrected = empty_values();
  }
  cuda::delta_forward(shape_, tokens(),
                      {.qkv = qkv(),
                       .parts = parts(),
                       .initial = float_or_null(initial_),
                       .y = address(out.y),
                       .states = address(out.states),
                       .corrected = address(out.corrected),
                       .last = out.last.mutable_data_ptr<float>()},
                      stream_);
  return out;
}

DeltaGradients FusedRule::backward(const Forward& forward, const at::Tensor& dy, const at::Tensor& dlast,
                                   const at::Tensor& dqkvzba) const {
  const at::Tensor dafter = dlast.defined() ? as_wide(dlast).contiguous() : at::Tensor();
  const at::Tensor dstates = empty_states(), dvalues = empty_values(), dfirst = empty_last();
  cuda::delta_reverse(shape_, tokens(),
                      {.qkv = qkv(),
                       .parts = parts(),
                       .dy = address(dy),
                       .initial = float_or_null(dafter),
                       .dstates = address(dstates),
                       .dvalues = address(dvalues),
                       .first = dfirst.mutable_data_ptr<float>()},
                      stream_);
  const at::Tensor dqkv = at::empty_like(qkv_);
  const at::Tensor sums = at::empty({int64_t{shape_.batch} * shape_.chunks, 2, shape_.heads}, wide());
  const cuda::DeltaGateArgs dgates = gates(dqkvzba);
  cuda::delta_backward(shape_, tokens(),
                       {.qkv = qkv(),
                        .lengths = lengths_.const_data_ptr<float>(),
                        .states = address(forward.states),
                        .corrected = address(forward.corrected),
                        .dy = address(dy),
                        .dstates = address(dstates),
                        .dvalues = address(dvalues),
                        .gates = gates(rows_),
                        .dqkv = address(dqkv),
                        .db = dgates.b,
                        .da = dgates.a,
                        .sums = sums.mutable_data_ptr<float>()},
                       stream_);
  const FusedConv::Gradients conv = conv_.backward(dqkv, dqkvzba.narrow(2, 0, options_.channels()), stream_);
  const at::Tensor of_heads = sums.sum(0);
  return {.dqkvzba_SB = dqkvzba,
          .weights = {.conv_weight = conv.dweight.unsqueeze(1), .dt_bias = of_heads[0], .A_log = of_heads[1]},
          .drule = dfirst};
}

}  // namespace

bool fused_delta_supports(const DeltaInput& input, const DeltaWeights& weights, const DeltaOptions& options) {
  const at::Tensor& x = input.qkvzba_SB;
  if (!x.is_cuda() || !is_half(x.scalar_type()) || !cuda::scan_supported()) return false;
  return FusedConv::supports(weights.conv_weight) && options.key_dim <= cuda::max_scan_state &&
         options.key_dim % 8 == 0 && options.value_dim % 8 == 0 &&
         options.value_dim <= cuda::max_norm_width && options.width() % 4 == 0 && x.numel() > 0;
}

DeltaOutput fused_delta_forward(const DeltaInput& input, const DeltaWeights& weights,
                                const DeltaOptions& options) {
  const FusedRule rule(input, weights, options);
  const FusedRule::Forward out = rule.forward(/*for_backward=*/false);
  return {rule.norm(out.y, weights.norm_weight).forward(), {rule.conv_after(), out.last}};
}

DeltaGradients fused_delta_backward(const at::Tensor& dy_SB, const at::Tensor& drule, const DeltaInput& input,
                                    const DeltaWeights& weights, const DeltaOptions& options) {
  const FusedRule rule(input, weights, options);
  const FusedRule::Forward out = rule.forward(/*for_backward=*/true);
  const at::Tensor dqkvzba = rule.empty_input();
  const FusedGatedNorm::Gradients norm =
      rule.norm(out.y, weights.norm_weight).backward(dy_SB.contiguous(), rule.z_of(dqkvzba));
  DeltaGradients result = rule.backward(out, norm.dy, drule, dqkvzba);
  result.weights.norm_weight = norm.dweight.sum(0);
  return result;
}

bool fused_delta_step_supports(const at::Tensor& qkvzba_R, const StateTables& tables,
                               const DeltaWeights& weights, const DeltaOptions& options) {
  return fused_delta_supports({.qkvzba_SB = qkvzba_R.unsqueeze(0)}, weights, options) &&
         tables.conv.scalar_type() == qkvzba_R.scalar_type() &&
         tables.recurrent.scalar_type() == at::kFloat && tables.conv.is_contiguous() &&
         tables.recurrent.is_contiguous();
}

at::Tensor fused_delta_step(const at::Tensor& qkvzba_R, const StateTables& tables,
                            const DeltaWeights& weights, const DeltaOptions& options) {
  const at::Tensor rows = qkvzba_R.contiguous();
  const FusedConv::Weights conv{readable_weights(weights.conv_weight, rows.scalar_type()), at::Tensor()};
  const at::Tensor dt_bias = readable_weights(weights.dt_bias, rows.scalar_type()),
                   A_log = readable_weights(weights.A_log, rows.scalar_type());
  const at::Tensor y = at::empty({rows.size(0), options.values()}, rows.options());
  const DeviceStream stream = current_stream(rows);
  const auto columns = [&](int64_t first) {
    return cuda::TokenRows{static_cast<const char*>(address(rows)) + first * rows.element_size(),
                           rows.stride(0)};
  };
  const int64_t b = options.channels() + options.values();
  const cuda::ScanShape shape{.heads = static_cast<int>(options.value_heads),
                              .groups = static_cast<int>(options.key_heads),
                              .head_dim = static_cast<int>(options.value_dim),
                              .state = static_cast<int>(options.key_dim),
                              .dtype = dtype_of(rows)};
  cuda::delta_step({.shape = shape,
                    .conv = mamba::conv_step(rows.narrow(1, 0, options.channels()), tables, conv),
                    .gates = {.b = columns(b),
                              .a = columns(b + options.value_heads),
                              .dt_bias = weight_vector(dt_bias),
                              .A_log = weight_vector(A_log),
                              .beta_scale = static_cast<float>(options.beta_scale)},
                    .states = tables.recurrent.mutable_data_ptr<float>(),
                    .y = address(y)},
                   stream);
  return norm_of(options, rows, y, weights.norm_weight).forward();
}

}  // namespace teratron::delta
