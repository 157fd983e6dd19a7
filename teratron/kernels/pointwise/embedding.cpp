#include "teratron/kernels/pointwise/embedding.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/pointwise/launchers.h"

namespace teratron {

namespace {

/// Ascending ids, and their permutation: [T] and [T]. Sorts in the narrowest dtype that holds ids below
/// `count`, since a radix sort makes a pass per byte.
std::pair<at::Tensor, at::Tensor> sort_ids(const at::Tensor& ids, int64_t count) {
  constexpr int64_t shorts = 1 << 16, ints = int64_t{1} << 32;
  TERATRON_ASSERT(count <= ints, "embedding table of {} rows", count);
  const bool is_short = count <= shorts;
  const int64_t offset = (is_short ? shorts : ints) / 2;
  const auto [keys, order] =
      (ids - offset).to(is_short ? at::kShort : at::kInt).sort(/*stable=*/true, 0, /*descending=*/false);
  return {keys.to(at::kLong) + offset, order};
}

}  // namespace

void embedding_add_(const at::Tensor& x, const at::Tensor& table, const at::Tensor& ids) {
  require_float(x, "x");
  require_like(table, x, table.size(0) * x.size(1), "table");
  TERATRON_ASSERT(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.is_contiguous() &&
                  ids.device() == x.device());
  if (x.numel() == 0) return;
  TERATRON_ASSERT(ids.numel() > 0 && x.size(0) % ids.numel() == 0, "{} ids for {} rows", ids.numel(),
                  x.size(0));
  const int64_t rows_per_id = x.size(0) / ids.numel();
  if (!x.is_cuda()) {
    x.view({ids.numel(), rows_per_id, -1}).add_(at::embedding(table, ids).unsqueeze(1));
    return;
  }
  cuda::embedding_add({.rows = x.size(0),
                       .width = x.size(1),
                       .dtype = dtype_of(x),
                       .ids = ids.const_data_ptr<int64_t>(),
                       .rows_per_id = rows_per_id,
                       .table = address(table),
                       .x = address(x)},
                      current_stream(x));
}

void embedding_grad_add_(const at::Tensor& sum, const at::Tensor& ids, const at::Tensor& dy) {
  require_float(dy, "dy");
  TERATRON_ASSERT(sum.dim() == 2 && dy.dim() == 2 && sum.size(1) == dy.size(1), "row widths {} and {}",
                  sum.size(-1), dy.size(-1));
  TERATRON_ASSERT(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.size(0) == dy.size(0));
  if (!dy.is_cuda() || sum.scalar_type() != accumulation_type(dy) || dy.numel() == 0) {
    sum.index_add_(0, ids, dy.to(sum.scalar_type()));
    return;
  }
  require_float(sum, "sum");
  const auto [ascending, order] = sort_ids(ids, sum.size(0));
  const at::Tensor workspace =
      at::empty({cuda::embedding_grad_workspace_rows(dy.size(0)), dy.size(1)}, sum.options());
  cuda::embedding_grad_add({.rows = dy.size(0),
                            .width = dy.size(1),
                            .dtype = dtype_of(dy),
                            .ids = ascending.const_data_ptr<int64_t>(),
                            .order = order.const_data_ptr<int64_t>(),
                            .dy = address(dy),
                            .sum = address(sum),
                            .workspace = address(workspace)},
                           current_stream(dy));
}

}  // namespace teratron
