#include "teratron/kernels/cross_entropy.h"

#include <limits>

#include "teratron/kernels/cross_entropy_cuda.h"
#include "teratron/kernels/dispatch.h"
#include "teratron/kernels/stream.h"

namespace teratron {
namespace {

cuda::VocabShape shape_of(const at::Tensor& logits, const VocabRange& range) {
  require_float(logits, "logits");
  const RowShape rows = rows_of(logits);
  TERATRON_ASSERT(range.first >= 0 && range.columns >= 0 && range.columns <= rows.width,
                  "{} logical columns of {}", range.columns, rows.width);
  return {.rows = rows.count,
          .width = rows.width,
          .first = range.first,
          .columns = range.columns,
          .dtype = dtype_of(logits)};
}

void check_targets(const at::Tensor& targets, const at::Tensor& logits, int64_t rows) {
  TERATRON_ASSERT(targets.scalar_type() == at::kLong && targets.is_contiguous() && targets.numel() == rows &&
                  targets.device() == logits.device());
}

/// Column of the row's target in the local logits, or -1.
int64_t local_target(int64_t target, const cuda::VocabShape& shape) {
  const int64_t column = target - shape.first;
  return column >= 0 && column < shape.columns ? column : -1;
}

/// Rows are taken in chunks whose copy in the type of the arithmetic stays in the cache.
template <typename F>
void for_row_chunks(const cuda::VocabShape& shape, F&& f) {
  const int64_t chunk = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, shape.rows, chunk, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += chunk) f(row, std::min(chunk, end - row));
  });
}

template <typename A>
void statistics_cpu(const at::Tensor& logits, const at::Tensor& targets, const cuda::VocabShape& shape,
                    const CrossEntropyStatistics& out) {
  A* const max = out.max.mutable_data_ptr<A>();
  A* const target_logit = out.target_logit.mutable_data_ptr<A>();
  if (shape.columns == 0) {
    std::fill(max, max + shape.rows, -std::numeric_limits<A>::infinity());
    return;
  }
  const int64_t* const target = targets.const_data_ptr<int64_t>();
  for_row_chunks(shape, [&](int64_t row, int64_t count) {
    at::Tensor z = at::empty({count, shape.columns}, out.max.options());
    z.copy_(logits.narrow(0, row, count).narrow(1, 0, shape.columns));
    for (int64_t t = 0; t < count; ++t) {
      const int64_t column = local_target(target[row + t], shape);
      if (column >= 0) target_logit[row + t] = z.const_data_ptr<A>()[t * shape.columns + column];
    }
    const at::Tensor row_max = std::get<0>(z.max(-1, true));
    z.sub_(row_max).exp_();
    out.max.narrow(0, row, count).copy_(row_max.squeeze(-1));
    out.sum_exp.narrow(0, row, count).copy_(z.sum(-1));
  });
}

template <typename A>
void gradient_cpu(const at::Tensor& logits, const CrossEntropySaved& saved, const cuda::VocabShape& shape) {
  const int64_t* const target = saved.targets.const_data_ptr<int64_t>();
  const A* const scale = saved.scale.const_data_ptr<A>();
  for_row_chunks(shape, [&](int64_t row, int64_t count) {
    const at::Tensor rows = logits.narrow(0, row, count);
    const auto column_vector = [&](const at::Tensor& t) { return t.narrow(0, row, count).unsqueeze(-1); };
    at::Tensor z = at::empty({count, shape.columns}, saved.max.options());
    z.copy_(rows.narrow(1, 0, shape.columns));
    z.sub_(column_vector(saved.max)).exp_().mul_(column_vector(saved.scale / saved.sum_exp));
    for (int64_t t = 0; t < count; ++t) {
      const int64_t column = local_target(target[row + t], shape);
      if (column >= 0) z.mutable_data_ptr<A>()[t * shape.columns + column] -= scale[row + t];
    }
    rows.narrow(1, 0, shape.columns).copy_(z);
    rows.narrow(1, shape.columns, shape.width - shape.columns).zero_();
  });
}

}  // namespace

CrossEntropyStatistics cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& targets,
                                                const VocabRange& range) {
  const cuda::VocabShape shape = shape_of(logits, range);
  check_targets(targets, logits, shape.rows);
  const auto type = logits.options().dtype(accumulation_type(logits));
  CrossEntropyStatistics out{.max = at::empty({shape.rows}, type),
                             .sum_exp = at::zeros({shape.rows}, type),
                             .target_logit = at::zeros({shape.rows}, type)};
  if (shape.rows == 0) return out;
  if (logits.is_cuda()) {
    cuda::cross_entropy_statistics(shape,
                                   {.logits = address(logits),
                                    .targets = targets.const_data_ptr<int64_t>(),
                                    .max = address(out.max),
                                    .sum_exp = address(out.sum_exp),
                                    .target_logit = address(out.target_logit)},
                                   current_stream(logits));
    return out;
  }
  const at::Tensor flat = logits.view({shape.rows, shape.width});
  if (type.dtype() == at::kDouble) {
    statistics_cpu<double>(flat, targets, shape, out);
  } else {
    statistics_cpu<float>(flat, targets, shape, out);
  }
  return out;
}

void cross_entropy_gradient_(const at::Tensor& logits, const CrossEntropySaved& saved,
                             const VocabRange& range) {
  const cuda::VocabShape shape = shape_of(logits, range);
  check_targets(saved.targets, logits, shape.rows);
  for (const at::Tensor* t : {&saved.max, &saved.sum_exp, &saved.scale}) {
    TERATRON_ASSERT(t->scalar_type() == accumulation_type(logits) && t->is_contiguous() &&
                    t->numel() == shape.rows && t->device() == logits.device());
  }
  if (logits.numel() == 0) return;
  if (logits.is_cuda()) {
    cuda::cross_entropy_gradient(shape,
                                 {.logits = address(logits),
                                  .targets = saved.targets.const_data_ptr<int64_t>(),
                                  .max = address(saved.max),
                                  .sum_exp = address(saved.sum_exp),
                                  .scale = address(saved.scale)},
                                 current_stream(logits));
    return;
  }
  const at::Tensor flat = logits.view({shape.rows, shape.width});
  const CrossEntropySaved rows{.max = saved.max.view(-1),
                               .sum_exp = saved.sum_exp.view(-1),
                               .targets = saved.targets.view(-1),
                               .scale = saved.scale.view(-1)};
  if (logits.scalar_type() == at::kDouble) {
    gradient_cpu<double>(flat, rows, shape);
  } else {
    gradient_cpu<float>(flat, rows, shape);
  }
}

}  // namespace teratron
