#include "teratron/kernels/pointwise/embedding.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/pointwise/embedding_cuda.h"

namespace teratron {

namespace {

/// Ascending, and where each was: [T] and [T]. In the narrower type that holds ids below `count`, as a radix sort passes over
/// them for each byte.
std::pair<at::Tensor, at::Tensor> sorted(const at::Tensor& ids, int64_t count) {
  constexpr int64_t shorts = 1 << 16, ints = int64_t{1} << 32;
  TERATRON_ASSERT(count <= ints, "a table of {} rows", count);
  const bool is_short = count <= shorts;
  const int64_t middle = (is_short ? shorts : ints) / 2;
  const auto [keys, order] =
      (ids - middle).to(is_short ? at::kShort : at::kInt).sort(/*stable=*/true, 0, /*descending=*/false);
  return {keys.to(at::kLong) + middle, order};
}

}  // namespace

void add_looked_up_(const at::Tensor& x, const at::Tensor& table, const at::Tensor& ids) {
  require_float(x, "x");
  require_like(table, x, table.size(0) * x.size(1), "table");
  TERATRON_ASSERT(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.is_contiguous() &&
                  ids.device() == x.device());
  if (x.numel() == 0) return;
  TERATRON_ASSERT(ids.numel() > 0 && x.size(0) % ids.numel() == 0, "{} ids for {} rows", ids.numel(),
                  x.size(0));
  const int64_t rows_of_id = x.size(0) / ids.numel();
  if (!x.is_cuda()) {
    x.view({ids.numel(), rows_of_id, -1}).add_(at::embedding(table, ids).unsqueeze(1));
    return;
  }
  cuda::add_looked_up({.rows = x.size(0),
                       .width = x.size(1),
                       .dtype = dtype_of(x),
                       .ids = ids.const_data_ptr<int64_t>(),
                       .rows_of_id = rows_of_id,
                       .table = address(table),
                       .x = address(x)},
                      current_stream(x));
}

void add_rows_(const at::Tensor& sum, const at::Tensor& ids, const at::Tensor& dy) {
  require_float(dy, "dy");
  TERATRON_ASSERT(sum.dim() == 2 && dy.dim() == 2 && sum.size(1) == dy.size(1), "rows of {} and {}",
                  sum.size(-1), dy.size(-1));
  TERATRON_ASSERT(ids.dim() == 1 && ids.scalar_type() == at::kLong && ids.size(0) == dy.size(0));
  if (!dy.is_cuda() || sum.scalar_type() != accumulation_type(dy) || dy.numel() == 0) {
    sum.index_add_(0, ids, dy.to(sum.scalar_type()));
    return;
  }
  require_float(sum, "sum");
  const auto [ascending, order] = sorted(ids, sum.size(0));
  const at::Tensor partial = at::empty({cuda::add_rows_partials(dy.size(0)), dy.size(1)}, sum.options());
  cuda::add_rows({.rows = dy.size(0),
                  .width = dy.size(1),
                  .dtype = dtype_of(dy),
                  .ids = ascending.const_data_ptr<int64_t>(),
                  .order = order.const_data_ptr<int64_t>(),
                  .dy = address(dy),
                  .sum = address(sum),
                  .partial = address(partial)},
                 current_stream(dy));
}

}  // namespace teratron
