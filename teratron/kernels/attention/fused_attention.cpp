#include "teratron/kernels/attention/fused_attention.h"

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"

namespace teratron {
namespace {

constexpr int64_t max_blocks = 65535, max_tokens = std::numeric_limits<int32_t>::max();

bool has_packs(const at::Tensor& x) {
  return x.stride(3) == 1 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 && x.stride(2) % 8 == 0 &&
         is_aligned(x);
}

cuda::HeadTensor heads_of(const at::Tensor& x) {
  TERATRON_ASSERT(has_packs(x), "attention with strides [{}]", fmt::join(x.strides(), ", "));
  return {address(x), x.stride(0), x.stride(1), x.stride(2)};
}

AttentionMask mask_of(const FusedAttentionInputs& inputs, const FusedAttentionOptions& options) {
  TERATRON_ASSERT(options.window == 0 || options.causal, "a window without a causal mask");
  AttentionMask mask{.queries = static_cast<int>(inputs.q_SBND.size(0)),
                     .keys = static_cast<int>(inputs.k_SBGD.size(0)),
                     .causal = options.causal,
                     .window = static_cast<int>(options.window),
                     .cu_seqlens_q = nullptr,
                     .cu_seqlens_k = nullptr,
                     .segments = 0};
  const at::Tensor &cu_q = options.cu_seqlens_q, &cu_k = options.cu_seqlens_k;
  if (!cu_q.defined()) return mask;
  TERATRON_ASSERT(cu_q.scalar_type() == at::kInt && cu_k.scalar_type() == at::kInt && cu_q.is_contiguous() &&
                      cu_k.is_contiguous() && cu_q.sizes() == cu_k.sizes() && cu_q.numel() > 1,
                  "segments [{}] of queries, [{}] of keys", cu_q.numel(), cu_k.numel());
  mask.cu_seqlens_q = cu_q.const_data_ptr<int32_t>();
  mask.cu_seqlens_k = cu_k.const_data_ptr<int32_t>();
  mask.segments = static_cast<int>(cu_q.numel() - 1);
  return mask;
}

/// What both directions share.
cuda::FusedAttentionArgs describe(const FusedAttentionInputs& inputs, const FusedAttentionOptions& options,
                                  const FusedAttentionOutput& output) {
  const at::Tensor &q = inputs.q_SBND, &k = inputs.k_SBGD;
  TERATRON_ASSERT(fused_attention_supports(inputs) && options.scale > 0, "queries [{}], keys [{}], scale {}",
                  fmt::join(q.sizes(), ", "), fmt::join(k.sizes(), ", "), options.scale);
  cuda::FusedAttentionArgs args{};
  args.mask = mask_of(inputs, options);
  args.batch = static_cast<int>(q.size(1));
  args.heads = static_cast<int>(q.size(2));
  args.groups = static_cast<int>(k.size(2));
  args.channels = static_cast<int>(q.size(3));
  args.dtype = dtype_of(q);
  args.scale = static_cast<float>(options.scale);
  TERATRON_ASSERT(options.softcap == 0.0 || !inputs.bias.defined(), "a soft cap with a bias");
  args.softcap = static_cast<float>(options.softcap);
  args.q = heads_of(q);
  args.k = heads_of(k);
  args.v = heads_of(inputs.v_SBGD);
  args.y = heads_of(output.y_SBND);
  args.logsumexp = output.logsumexp_BNS.mutable_data_ptr<float>();
  args.ranges = static_cast<KeyRange*>(address(output.ranges_BS2));
  args.dropout = make_score_dropout(options.dropout, q, q.size(0) * q.size(1) * q.size(2), k.size(0));
  TERATRON_ASSERT(args.dropout.scale > 0 && (args.dropout.threshold == 0 || args.dropout.rows), "dropout {}",
                  options.dropout.p);
  if (inputs.bias.defined()) {
    args.bias = inputs.bias.const_data_ptr<float>();
    args.bias_stride = inputs.bias.stride(0);
  }
  return args;
}

}  // namespace

bool fused_attention_supports(const FusedAttentionInputs& inputs) {
  const at::Tensor &q = inputs.q_SBND, &k = inputs.k_SBGD, &v = inputs.v_SBGD, &bias = inputs.bias;
  const bool has_shapes = q.dim() == 4 && k.sizes() == v.sizes() && q.size(1) == k.size(1) &&
                          q.size(3) == k.size(3) && k.size(2) > 0 && q.size(2) % k.size(2) == 0;
  if (!q.is_cuda() || !is_half(q.scalar_type()) || !has_shapes) return false;
  if (k.scalar_type() != q.scalar_type() || v.scalar_type() != q.scalar_type()) return false;
  const int64_t width = q.size(3), longest = std::max(q.size(0), k.size(0));
  if (width % 8 != 0 || width == 0 || width > 128 || q.numel() == 0 || k.numel() == 0) return false;
  if (q.size(1) > max_blocks || q.size(2) > max_blocks || q.size(1) * (longest + 256) > max_tokens)
    return false;
  if (bias.defined() && (bias.scalar_type() != at::kFloat || bias.stride(1) != 1)) return false;
  return has_packs(q) && has_packs(k) && has_packs(v);
}

FusedAttentionOutput fused_attention(const FusedAttentionInputs& inputs,
                                     const FusedAttentionOptions& options) {
  const at::Tensor& q = inputs.q_SBND;
  FusedAttentionOutput output{
      .y_SBND = at::empty(q.sizes(), q.options()),
      .logsumexp_BNS = at::empty({q.size(1), q.size(2), q.size(0)}, q.options().dtype(at::kFloat)),
      .ranges_BS2 = {}};
  if (options.cu_seqlens_q.defined()) {
    output.ranges_BS2 = at::empty({q.size(1), q.size(0), 2}, q.options().dtype(at::kInt));
  }
  cuda::fused_attention_forward(describe(inputs, options, output), current_stream(q));
  return output;
}

void fused_attention_backward(const FusedAttentionInputs& inputs, const FusedAttentionOptions& options,
                              const FusedAttentionOutput& forward, const at::Tensor& dy_SBND,
                              const FusedAttentionGradients& gradients) {
  cuda::FusedAttentionArgs args = describe(inputs, options, forward);
  args.dy = heads_of(dy_SBND);
  args.dq = heads_of(gradients.q_SBND);
  args.dk = heads_of(gradients.k_SBGD);
  args.dv = heads_of(gradients.v_SBGD);
  const at::Tensor delta = at::empty_like(forward.logsumexp_BNS);
  args.delta = delta.mutable_data_ptr<float>();
  at::Tensor slabs;
  if (gradients.bias.defined()) {
    require_like(gradients.bias, delta, args.heads * (args.mask.queries + args.mask.keys - 1), "dbias");
    TERATRON_ASSERT(args.bias != nullptr, "the gradient of no bias");
    slabs = at::zeros(
        {args.batch, args.heads, cuda::fused_attention_slabs(args), cuda::fused_attention_slab_columns(args)},
        delta.options());
    args.dbias_slabs = slabs.mutable_data_ptr<float>();
    args.dbias = gradients.bias.mutable_data_ptr<float>();
  }
  cuda::fused_attention_dq(args, current_stream(dy_SBND));
  cuda::fused_attention_dkv(args, current_stream(dy_SBND));
}

}  // namespace teratron
