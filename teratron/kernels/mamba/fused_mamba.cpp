#include "teratron/kernels/mamba/fused_mamba.h"

#include <ATen/ATen.h>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/mamba/fused_parts.h"
#include "teratron/kernels/mamba/mamba_parts.h"

namespace teratron::mamba {

namespace {

cuda::GatePlace place_of(MambaGate gate) {
  return gate == MambaGate::before_norm  ? cuda::GatePlace::before_norm
         : gate == MambaGate::after_norm ? cuda::GatePlace::after_norm
                                         : cuda::GatePlace::alone;
}

// For rows [..., width] and y [..., d].
FusedGatedNorm norm_of(const MambaOptions& options, const at::Tensor& rows, const at::Tensor& y,
                       const at::Tensor& weight) {
  return {.shape = {.rows = rows.numel() / rows.size(-1),
                    .groups = static_cast<int>(options.groups),
                    .width = static_cast<int>(options.inner() / options.groups),
                    .shared_weight = false,
                    .gate = place_of(options.gate),
                    .dtype = dtype_of(rows),
                    .eps = static_cast<float>(options.norm_eps)},
          .y = y,
          .z = {address(rows), rows.size(-1)},
          .weight = readable_weights(weight, rows.scalar_type()),
          .stream = current_stream(rows)};
}

// The chunked recurrence of one input, after its convolution.
class FusedScan {
 public:
  FusedScan(const MambaInput& input, const MambaWeights& weights, const MambaOptions& options)
      : options_(options),
        rows_(input.zxbcdt_SB.contiguous()),
        document_(input.document_SB.defined() ? input.document_SB.contiguous() : at::Tensor()),
        stream_(current_stream(rows_)),
        first_(options.gate == MambaGate::none ? 0 : options.inner()),
        A_log_(weights.A_log.contiguous()),
        D_(weights.D.contiguous()),
        conv_(rows_.narrow(2, first_, options.channels()), input.before.conv, document_,
              {weights.conv_weight, weights.conv_bias}) {
    const int64_t chunks = (rows_.size(0) + cuda::scan_chunk - 1) / cuda::scan_chunk;
    shape_ = {.batch = static_cast<int>(rows_.size(1)),
              .tokens = static_cast<int>(rows_.size(0)),
              .chunks = static_cast<int>(chunks),
              .heads = static_cast<int>(options.heads),
              .groups = static_cast<int>(options.groups),
              .head_dim = static_cast<int>(options.head_dim),
              .state = static_cast<int>(options.state),
              .dtype = dtype_of(rows_)};
    const at::TensorOptions wide = rows_.options().dtype(at::kFloat);
    const int64_t padded = chunks * cuda::scan_chunk;
    decays_ = at::empty({4, shape_.batch, shape_.heads, padded}, wide);
    if (document_.defined()) starts_ = at::empty({shape_.batch, padded}, wide.dtype(at::kInt));
    const at::Tensor bias = weights.dt_bias.contiguous();
    cuda::time_steps(shape_,
                     {.raw = step_columns(rows_),
                      .bias = bias.const_data_ptr<float>(),
                      .A_log = A_log_.const_data_ptr<float>(),
                      .least = least(),
                      .most = most(),
                      .document = document_.defined() ? document_.const_data_ptr<int64_t>() : nullptr},
                     tokens(), stream_);
    xbc_ = conv_.forward(stream_);
    states_ = empty_states();
    last_ = at::empty({shape_.batch, shape_.heads, shape_.head_dim, shape_.state}, wide);
    const at::Tensor initial =
        input.before.ssm.defined() ? as_wide(input.before.ssm).contiguous() : at::Tensor();
    cuda::scan_states(shape_, tokens(),
                      {.a = xbc_rows(0),
                       .b = xbc_rows(options.inner()),
                       .initial = float_or_null(initial),
                       .states = states_.data_ptr(),
                       .last = last_.mutable_data_ptr<float>(),
                       .reversed = false},
                      stream_);
  }

  at::Tensor output() const {
    const at::Tensor y = empty_rows();
    cuda::scan_output(shape_, tokens(), scan_rows(), y.data_ptr(), stream_);
    return y;
  }
  const at::Tensor& last() const { return last_; }
  at::Tensor conv_after() const { return conv_.after(); }

  FusedGatedNorm norm(const at::Tensor& y, const at::Tensor& weight) const {
    return norm_of(options_, rows_, y, weight);
  }

  /// dy: of output(). Fills the columns of dzxbcdt but z's.
  MambaGradients backward(const at::Tensor& dy, const at::Tensor& dlast, const at::Tensor& dzxbcdt) const;
  at::Tensor empty_input() const { return at::empty_like(rows_); }

 private:
  cuda::TokenRows step_columns(const at::Tensor& rows) const {
    return columns_of(rows, first_ + options_.channels());
  }
  cuda::TokenRows columns_of(const at::Tensor& rows, int64_t column) const {
    return {static_cast<const char*>(address(rows)) + column * rows.element_size(), rows.stride(1)};
  }
  cuda::TokenRows xbc_rows(int64_t column) const { return columns_of(xbc_, column); }
  cuda::ScanTokens tokens() const {
    auto* const values = decays_.mutable_data_ptr<float>();
    const int64_t each = decays_.stride(0);
    return {values, values + each, values + 2 * each, values + 3 * each,
            starts_.defined() ? starts_.mutable_data_ptr<int>() : nullptr};
  }
  cuda::ScanRows scan_rows() const { return {xbc_rows(0), states_.data_ptr(), D_.const_data_ptr<float>()}; }
  at::Tensor empty_rows() const {
    return at::empty({rows_.size(0), rows_.size(1), options_.inner()}, rows_.options());
  }
  at::Tensor empty_states() const {
    return at::empty({shape_.batch, shape_.chunks, shape_.heads, shape_.head_dim, shape_.state},
                     rows_.options());
  }
  float least() const { return static_cast<float>(options_.time_step_min); }
  float most() const { return static_cast<float>(options_.time_step_max); }

  const MambaOptions& options_;
  at::Tensor rows_, document_;
  DeviceStream stream_;
  int64_t first_;  // column of x
  at::Tensor A_log_, D_;
  FusedConv conv_;
  cuda::ScanShape shape_;
  at::Tensor decays_, starts_, xbc_, states_, last_;
};

MambaGradients FusedScan::backward(const at::Tensor& dy, const at::Tensor& dlast,
                                   const at::Tensor& dzxbcdt) const {
  const at::TensorOptions wide = decays_.options();
  const at::Tensor dstates = empty_states(), dfirst = at::empty_like(last_);
  const at::Tensor dafter = dlast.defined() ? as_wide(dlast).contiguous() : at::Tensor();
  cuda::scan_states(shape_, tokens(),
                    {.a = columns_of(dy, 0),
                     .b = xbc_rows(options_.inner() + options_.groups * options_.state),
                     .initial = float_or_null(dafter),
                     .states = dstates.data_ptr(),
                     .last = dfirst.mutable_data_ptr<float>(),
                     .reversed = true},
                    stream_);
  const int parts = cuda::scan_parts(shape_);
  const at::Tensor dxbc = at::empty_like(xbc_);
  const at::Tensor dbc =
      at::empty({parts, rows_.size(0), rows_.size(1), 2 * options_.groups * options_.state}, wide);
  const at::Tensor sums = at::empty({int64_t{shape_.batch} * shape_.chunks, 3, shape_.heads}, wide);
  cuda::scan_backward(shape_, tokens(), scan_rows(),
                      {.dy = dy.data_ptr(),
                       .dstates = dstates.data_ptr(),
                       .A_log = A_log_.const_data_ptr<float>(),
                       .least = least(),
                       .most = most(),
                       .dx = columns_of(dxbc, 0),
                       .dbc = dbc.mutable_data_ptr<float>(),
                       .draw = step_columns(dzxbcdt),
                       .sums = sums.mutable_data_ptr<float>()},
                      stream_);
  dxbc.narrow(2, options_.inner(), dbc.size(3)).copy_(dbc.sum(0));
  const FusedConv::Gradients conv =
      conv_.backward(dxbc, dzxbcdt.narrow(2, first_, options_.channels()), stream_);
  const at::Tensor of_heads = sums.sum(0);
  return {.dzxbcdt_SB = dzxbcdt,
          .weights = {.conv_weight = conv.dweight.unsqueeze(1),
                      .conv_bias = conv.dbias,
                      .dt_bias = of_heads[0],
                      .A_log = of_heads[1],
                      .D = of_heads[2]},
          .dssm = dfirst};
}

bool is_multiple_of_8(std::initializer_list<int64_t> sizes) {
  return std::ranges::all_of(sizes, [](int64_t size) { return size % 8 == 0; });
}

}  // namespace

bool fused_mamba_supports(const MambaInput& input, const MambaWeights& weights, const MambaOptions& options) {
  const at::Tensor& x = input.zxbcdt_SB;
  if (!x.is_cuda() || !is_half(x.scalar_type()) || !cuda::scan_supported()) return false;
  const int64_t norm = options.inner() / options.groups;
  return FusedConv::supports(weights.conv_weight) && options.head_dim <= cuda::max_scan_head_dim &&
         options.state <= cuda::max_scan_state && norm <= cuda::max_norm_width &&
         is_multiple_of_8({options.head_dim, options.state, norm}) && options.width() % 4 == 0 &&
         x.numel() > 0;
}

MambaOutput fused_mamba_forward(const MambaInput& input, const MambaWeights& weights,
                                const MambaOptions& options) {
  const FusedScan scan(input, weights, options);
  at::Tensor y = scan.output();
  if (options.gate != MambaGate::none) y = scan.norm(y, weights.norm_weight).forward();
  return {y, {scan.conv_after(), scan.last()}};
}

MambaGradients fused_mamba_backward(const at::Tensor& dy_SB, const at::Tensor& dssm, const MambaInput& input,
                                    const MambaWeights& weights, const MambaOptions& options) {
  const FusedScan scan(input, weights, options);
  const at::Tensor dzxbcdt = scan.empty_input();
  at::Tensor dy = dy_SB.contiguous(), dnorm;
  if (options.gate != MambaGate::none) {
    const auto norm =
        scan.norm(scan.output(), weights.norm_weight).backward(dy, {address(dzxbcdt), dzxbcdt.stride(1)});
    dy = norm.dy;
    dnorm = norm.dweight;
  }
  MambaGradients result = scan.backward(dy, dssm, dzxbcdt);
  if (dnorm.defined()) result.weights.norm_weight = dnorm.flatten();
  return result;
}

bool fused_mamba_step_supports(const at::Tensor& zxbcdt_R, const StateTables& tables,
                               const MambaWeights& weights, const MambaOptions& options) {
  const MambaInput input{.zxbcdt_SB = zxbcdt_R.unsqueeze(0)};
  return fused_mamba_supports(input, weights, options) && options.gate != MambaGate::none &&
         tables.conv.scalar_type() == zxbcdt_R.scalar_type() &&
         tables.recurrent.scalar_type() == at::kFloat && tables.conv.is_contiguous() &&
         tables.recurrent.is_contiguous();
}

at::Tensor fused_mamba_step(const at::Tensor& zxbcdt_R, const StateTables& tables,
                            const MambaWeights& weights, const MambaOptions& options) {
  const at::Tensor rows = zxbcdt_R.contiguous(), x = rows.narrow(1, options.inner(), options.channels()),
                   raw = rows.narrow(1, options.inner() + options.channels(), options.heads);
  const FusedConv::Weights conv{readable_weights(weights.conv_weight, rows.scalar_type()),
                                readable_weights(weights.conv_bias, rows.scalar_type())};
  const at::Tensor dt_bias = weights.dt_bias.contiguous(), A_log = weights.A_log.contiguous(),
                   D = weights.D.contiguous();
  const at::Tensor y = at::empty({rows.size(0), options.inner()}, rows.options());
  const DeviceStream stream = current_stream(rows);
  const cuda::ScanShape shape{.heads = static_cast<int>(options.heads),
                              .groups = static_cast<int>(options.groups),
                              .head_dim = static_cast<int>(options.head_dim),
                              .state = static_cast<int>(options.state),
                              .dtype = dtype_of(rows)};
  cuda::scan_step({.shape = shape,
                   .conv = conv_step(x, tables, conv),
                   .raw = {address(raw), raw.stride(0)},
                   .dt_bias = dt_bias.const_data_ptr<float>(),
                   .A_log = A_log.const_data_ptr<float>(),
                   .D = D.const_data_ptr<float>(),
                   .least = static_cast<float>(options.time_step_min),
                   .most = static_cast<float>(options.time_step_max),
                   .states = tables.recurrent.mutable_data_ptr<float>(),
                   .y = address(y)},
                  stream);
  return norm_of(options, rows, y, weights.norm_weight).forward();
}

}  // namespace teratron::mamba
