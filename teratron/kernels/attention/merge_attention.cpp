#include "teratron/kernels/attention/merge_attention.h"

#include <ATen/ATen.h>

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"

namespace teratron {
namespace {

// Without keys: -inf.
at::Tensor sanitized(const at::Tensor& logsumexp) {
  return logsumexp.masked_fill(logsumexp.isinf(), -INFINITY);
}

void merge_cpu(const std::vector<AttentionPart>& parts, const AttentionPart& out) {
  const at::ScalarType wide = out.logsumexp_BNS.scalar_type();
  at::Tensor total_BNS = at::full_like(out.logsumexp_BNS, -INFINITY);
  std::vector<at::Tensor> sums;  // of parts
  for (const AttentionPart& part : parts) {
    sums.push_back(sanitized(part.logsumexp_BNS));
    const at::Tensor own = total_BNS.narrow(2, part.first_query, part.logsumexp_BNS.size(2));
    own.copy_(at::logaddexp(own, sums.back()));
  }
  const at::Tensor y = at::zeros(out.y_SBND.sizes(), out.y_SBND.options().dtype(wide));
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t first = parts[i].first_query, count = parts[i].logsumexp_BNS.size(2);
    const at::Tensor weight_BNS = at::where(sums[i].isinf(), at::zeros({}, sums[i].options()),
                                            (sums[i] - total_BNS.narrow(2, first, count)).exp());
    const at::Tensor weight_SBN1 = weight_BNS.permute({2, 0, 1}).unsqueeze(3);
    const at::Tensor y_i = parts[i].y_SBND.to(wide).masked_fill(weight_SBN1 == 0, 0.0);
    y.narrow(0, first, count).add_(weight_SBN1 * y_i);
  }
  out.y_SBND.copy_(y);
  out.logsumexp_BNS.copy_(total_BNS);
}

cuda::MergePart describe(const AttentionPart& part) {
  const at::Tensor &y = part.y_SBND, &l = part.logsumexp_BNS;
  TERATRON_ASSERT(y.stride(3) == 1 && l.scalar_type() == at::kFloat);
  return {.y = address(y),
          .logsumexp = l.const_data_ptr<float>(),
          .is_wide = y.scalar_type() == at::kFloat,
          .first = part.first_query,
          .queries = y.size(0),
          .y_s = y.stride(0),
          .y_b = y.stride(1),
          .y_n = y.stride(2),
          .l_b = l.stride(0),
          .l_n = l.stride(1),
          .l_s = l.stride(2)};
}

AttentionPart merge(const std::vector<AttentionPart>& parts, const at::Tensor& q, at::ScalarType type) {
  const at::TensorOptions options = q.options().requires_grad(false);
  const AttentionPart out{at::empty(q.sizes(), options.dtype(type)),
                          at::empty({q.size(1), q.size(2), q.size(0)}, options.dtype(accumulation_type(q)))};
  if (!q.is_cuda() || q.scalar_type() == at::kDouble) {
    merge_cpu(parts, out);
    return out;
  }
  cuda::MergeArgs args{.parts = {},
                       .count = static_cast<int>(parts.size()),
                       .y = address(out.y_SBND),
                       .logsumexp = out.logsumexp_BNS.mutable_data_ptr<float>(),
                       .queries = q.size(0),
                       .batch = q.size(1),
                       .heads = q.size(2),
                       .channels = q.size(3),
                       .dtype = dtype_of(q),
                       .wide_out = type == at::kFloat};
  for (size_t i = 0; i < parts.size(); ++i) args.parts[i] = describe(parts[i]);
  if (out.y_SBND.numel() > 0) cuda::merge_attention(args, current_stream(q));
  return out;
}

}  // namespace

void AttentionMerge::add(const AttentionPart& part) {
  TERATRON_ASSERT(part.first_query + part.y_SBND.size(0) <= q_SBND_.size(0) &&
                  part.logsumexp_BNS.size(2) == part.y_SBND.size(0));
  if (parts_.size() == cuda::max_merge_parts) parts_ = {merge(parts_, q_SBND_, accumulation_type(q_SBND_))};
  parts_.push_back(part);
}

AttentionPart AttentionMerge::result() {
  TERATRON_ASSERT(!parts_.empty(), "attention without keys");
  return merge(parts_, q_SBND_, q_SBND_.scalar_type());
}

}  // namespace teratron
