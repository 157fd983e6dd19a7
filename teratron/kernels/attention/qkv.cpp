#include "teratron/kernels/attention/qkv.h"

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/pointwise/activation.h"

namespace teratron {
namespace {

cuda::QkvPart part(const at::Tensor& x) {
  return {.data = x.const_data_ptr(),
          .stride_s = x.stride(0),
          .stride_b = x.stride(1),
          .stride_group = x.stride(2),
          .stride_head = x.dim() == 5 ? x.stride(3) : 0};
}

cuda::MergeQkvArgs describe(const QkvParts& gradients, const QkvRotation* rotation, const at::Tensor& qkv) {
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

/// RoPE of style `half` over all channels, or none.
bool is_fusable(const QkvRotation* rotation, int64_t channels) {
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

/// Whether both views have the same elements of one storage in the same order.
bool is_same_view(const at::Tensor& x, const at::Tensor& y) {
  if (x.storage_offset() != y.storage_offset() || x.sizes() != y.sizes()) return false;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) != 1 && x.stride(i) != y.stride(i)) return false;
  }
  return true;
}

}  // namespace

QkvParts unpack_qkv(const at::Tensor& qkv) {
  const int64_t queries = qkv.size(3) - 2;
  return {qkv.narrow(3, 0, queries), qkv.select(3, queries), qkv.select(3, queries + 1)};
}

at::Tensor packed_qkv(const QkvParts& parts) {
  const at::Tensor& q = parts.q;
  if (!q.is_alias_of(parts.k) || !q.is_alias_of(parts.v)) return {};
  const int64_t per_group = q.size(3) + 2, width = q.size(2) * per_group * q.size(4);
  const int64_t available =
      static_cast<int64_t>(q.storage().nbytes() / q.element_size()) - q.storage_offset();
  if (q.size(0) * q.size(1) * width > available) return {};
  const at::Tensor whole =
      q.as_strided({q.size(0), q.size(1), q.size(2), per_group, q.size(4)},
                   {q.size(1) * width, width, per_group * q.size(4), q.size(4), 1}, q.storage_offset());
  const QkvParts views = unpack_qkv(whole);
  const bool same =
      is_same_view(q, views.q) && is_same_view(parts.k, views.k) && is_same_view(parts.v, views.v);
  return same ? whole : at::Tensor();
}

at::Tensor queries_and_keys(const at::Tensor& qkv_TF, const QkvRope& rope) {
  const int64_t width = rope.per_group * rope.channels;
  TERATRON_ASSERT(qkv_TF.size(1) % width == 0, "{} features in groups of {}", qkv_TF.size(1), width);
  const at::Tensor& positions = rope.rotation.positions;
  return qkv_TF
      .view({positions.size(0), positions.size(1), qkv_TF.size(1) / width, rope.per_group, rope.channels})
      .narrow(3, 0, rope.per_group - 1);
}

void apply_rope_(const at::Tensor& qkv_TF, const QkvRope& rope) {
  const auto& [table, style, positions] = rope.rotation;
  rope_(queries_and_keys(qkv_TF, rope), table, positions, {style, RopeDirection::forward});
}

MergedQkv merge_qkv(const QkvParts& gradients, const QkvRotation* rotation,
                    const std::optional<GradSink>& dbias_sink) {
  const auto& [q, k, v] = gradients;
  TERATRON_ASSERT(q.dim() == 5 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(2) == k.size(2));
  TERATRON_ASSERT(q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1);
  const at::Tensor whole = packed_qkv(gradients);
  const auto sum_of = [&](const at::Tensor& qkv) {
    return dbias_sink ? column_sum(qkv.flatten(2), *dbias_sink) : at::Tensor();
  };
  if (whole.defined() && rotation == nullptr) return {.qkv = whole, .dbias = sum_of(whole)};
  const at::Tensor qkv =
      whole.defined() ? whole
                      : at::empty({q.size(0), q.size(1), q.size(2), q.size(3) + 2, q.size(4)}, q.options());
  if (q.is_cuda() && q.numel() > 0 && is_fusable(rotation, q.size(4))) {
    cuda::MergeQkvArgs args = describe(gradients, rotation, qkv);
    if (cuda::can_merge_qkv(args)) {
      ColumnSum dbias(dbias_sink, qkv.numel() / (qkv.size(0) * qkv.size(1)), q.options().dtype(at::kFloat));
      if (dbias_sink) args.dbias = dbias.reduction(cuda::merge_qkv_workspace_rows(args));
      cuda::merge_qkv(args, current_stream(q));
      return {.qkv = qkv, .dbias = dbias.out()};
    }
  }
  const QkvParts into = unpack_qkv(qkv);
  merge_part(q, into.q, rotation);
  merge_part(k, into.k, rotation);
  if (!whole.defined()) copy_heads(v, into.v);
  return {.qkv = qkv, .dbias = sum_of(qkv)};
}

}  // namespace teratron
