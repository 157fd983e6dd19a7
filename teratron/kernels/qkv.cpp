#include "teratron/kernels/qkv.h"

#include "teratron/kernels/activation.h"
#include "teratron/kernels/dispatch.h"
#include "teratron/kernels/qkv_cuda.h"
#include "teratron/kernels/stream.h"

namespace teratron {
namespace {

cuda::QkvPart part(const at::Tensor& x) {
  return {.data = x.const_data_ptr(),
          .stride_s = x.stride(0),
          .stride_b = x.stride(1),
          .stride_group = x.stride(2),
          .stride_head = x.dim() == 5 ? x.stride(3) : 0};
}

cuda::MergeQkvArgs describe(const QkvGradients& gradients, const QkvRotation* rotation,
                            const at::Tensor& qkv) {
  cuda::MergeQkvArgs args{.q = part(gradients.q),
                          .k = part(gradients.k),
                          .v = part(gradients.v),
                          .out = address(qkv),
                          .length = qkv.size(0),
                          .batch = qkv.size(1),
                          .groups = qkv.size(2),
                          .per_group = qkv.size(3),
                          .channels = qkv.size(4),
                          .dtype = dtype_of(qkv)};
  if (rotation == nullptr) return args;
  args.cos = static_cast<const float*>(address(rotation->table.cos));
  args.sin = static_cast<const float*>(address(rotation->table.sin));
  args.positions = rotation->positions.const_data_ptr<int64_t>();
  args.position_stride_s = rotation->positions.stride(0);
  args.position_stride_b = rotation->positions.stride(1);
  return args;
}

/// Rotation by halves of all channels, or none.
bool is_simple(const QkvRotation* rotation, int64_t channels) {
  return rotation == nullptr ||
         (rotation->style == RopeStyle::half && 2 * rotation->table.cos.size(1) == channels);
}

void merge_part(const at::Tensor& from, const at::Tensor& to, const QkvRotation* rotation) {
  if (rotation == nullptr) {
    copy_heads(from, to);
  } else {
    rope_into(from, to, rotation->table, rotation->positions, {rotation->style, RopeDirection::inverse});
  }
}

}  // namespace

MergedQkv merge_qkv(const QkvGradients& gradients, const QkvRotation* rotation, const WantedSum& sum) {
  const auto& [q, k, v] = gradients;
  TERATRON_ASSERT(q.dim() == 5 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(2) == k.size(2));
  TERATRON_ASSERT(q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1);
  const int64_t queries = q.size(3);
  const at::Tensor qkv = at::empty({q.size(0), q.size(1), q.size(2), queries + 2, q.size(4)}, q.options());
  const int64_t width = qkv.size(2) * qkv.size(3) * qkv.size(4);
  if (q.is_cuda() && q.numel() > 0 && is_simple(rotation, q.size(4))) {
    cuda::MergeQkvArgs args = describe(gradients, rotation, qkv);
    if (cuda::can_merge_qkv(args)) {
      const auto sums = q.options().dtype(at::kFloat);
      MergedQkv result{.qkv = qkv};
      at::Tensor partial;
      if (sum) {
        partial = at::empty({cuda::merge_qkv_partials(args), width}, sums);
        result.column_sum = place_of_sum(*sum, width, sums);
        args.partial = static_cast<float*>(address(partial));
        args.column_sum = static_cast<float*>(address(result.column_sum));
      }
      cuda::merge_qkv(args, current_stream(q));
      return result;
    }
  }
  merge_part(q, qkv.narrow(3, 0, queries), rotation);
  merge_part(k, qkv.select(3, queries), rotation);
  copy_heads(v, qkv.select(3, queries + 1));
  return {.qkv = qkv, .column_sum = sum ? column_sum(qkv.flatten(2), *sum) : at::Tensor()};
}

}  // namespace teratron
