#include "teratron/kernels/loss/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/common/vector_math.h"
#include "teratron/kernels/fp8/fp8_allocation.h"
#include "teratron/kernels/loss/launchers.h"

namespace teratron {
namespace {

cuda::VocabShape vocab_shape_of(const at::Tensor& logits, const VocabRange& range) {
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

/// Calls f(t) for every row, in parallel.
template <typename F>
void for_rows(const cuda::VocabShape& shape, const F& f) {
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, shape.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) f(t);
  });
}

/// Calls f(z, first, count) for chunks of a row's logical columns that fit in cache: `z` holds them in the
/// accumulation type, followed by a vector of -inf.
template <typename T, typename F>
void for_columns(const T* row, const cuda::VocabShape& shape, const F& f) {
  using A = Accumulator<T>;
  constexpr int64_t chunk = 1024;
  A z[chunk + Vector<A>::size()];
  for (int64_t first = 0; first < shape.columns; first += chunk) {
    const int64_t count = std::min(chunk, shape.columns - first);
    convert(row + first, z, count);
    std::fill_n(z + count, Vector<A>::size(), -std::numeric_limits<A>::infinity());
    f(z, first, count);
  }
}

template <typename A>
A max_of(const A* z, int64_t count, A least) {
  Vector<A> most(least);
  for (int64_t i = 0; i < count; i += Vector<A>::size())
    most = at::vec::maximum(most, Vector<A>::loadu(z + i));
  return at::vec::vec_reduce_all<A>([](const auto& a, const auto& b) { return at::vec::maximum(a, b); },
                                    most);
}

/// Sum of exp(z - top).
template <typename A>
A exp_sum(const A* z, int64_t count, A top) {
  Vector<A> sums(0);
  for (int64_t i = 0; i < count; i += Vector<A>::size()) {
    sums = sums + (Vector<A>::loadu(z + i) - Vector<A>(top)).exp();
  }
  return at::vec::vec_reduce_all<A>([](const auto& a, const auto& b) { return a + b; }, sums);
}

template <typename T>
void statistics_cpu(const at::Tensor& logits, const at::Tensor& targets, const cuda::VocabShape& shape,
                    const CrossEntropyStatistics& out) {
  using A = Accumulator<T>;
  const T* const all = logits.const_data_ptr<T>();
  const int64_t* const target = targets.const_data_ptr<int64_t>();
  A* const max = out.max.mutable_data_ptr<A>();
  A* const sum_exp = out.sum_exp.mutable_data_ptr<A>();
  A* const target_logit = out.target_logit.mutable_data_ptr<A>();
  for_rows(shape, [&](int64_t t) {
    const T* const row = all + t * shape.width;
    A top = -std::numeric_limits<A>::infinity(), sum = 0;
    for_columns(row, shape, [&](const A* z, int64_t, int64_t count) { top = max_of(z, count, top); });
    for_columns(row, shape, [&](const A* z, int64_t, int64_t count) { sum += exp_sum(z, count, top); });
    max[t] = top;
    sum_exp[t] = sum;
    const int64_t column = local_target(target[t], shape);
    if (column >= 0) target_logit[t] = static_cast<A>(row[column]);
  });
}

template <typename T>
void gradient_cpu(const at::Tensor& logits, const CrossEntropySaved& saved, const cuda::VocabShape& shape) {
  using A = Accumulator<T>;
  T* const all = logits.mutable_data_ptr<T>();
  const int64_t* const target = saved.targets.const_data_ptr<int64_t>();
  const A* const max = saved.max.const_data_ptr<A>();
  const A* const sum_exp = saved.sum_exp.const_data_ptr<A>();
  const A* const scale = saved.scale.const_data_ptr<A>();
  for_rows(shape, [&](int64_t t) {
    T* const row = all + t * shape.width;
    const A factor = scale[t] / sum_exp[t];
    const int64_t column = local_target(target[t], shape);
    for_columns(row, shape, [&](A* z, int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; i += Vector<A>::size()) {
        ((Vector<A>::loadu(z + i) - Vector<A>(max[t])).exp() * Vector<A>(factor)).store(z + i);
      }
      if (column >= first && column < first + count) z[column - first] -= scale[t];
      convert(z, row + first, count);
    });
    std::fill(row + shape.columns, row + shape.width, T(0));
  });
}

}  // namespace

CrossEntropyStatistics cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& targets,
                                                const VocabRange& range) {
  const cuda::VocabShape shape = vocab_shape_of(logits, range);
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
  with_float_type(logits, [&]<typename T>(T) { statistics_cpu<T>(logits, targets, shape, out); });
  return out;
}

namespace {

void check_saved(const CrossEntropySaved& saved, const at::Tensor& logits, int64_t rows) {
  check_targets(saved.targets, logits, rows);
  for (const at::Tensor* t : {&saved.max, &saved.sum_exp, &saved.scale}) {
    TERATRON_ASSERT(t->scalar_type() == accumulation_type(logits) && t->is_contiguous() &&
                    t->numel() == rows && t->device() == logits.device());
  }
}

cuda::CrossEntropyGradientArgs gradient_args(const at::Tensor& logits, const CrossEntropySaved& saved) {
  return {.logits = address(logits),
          .targets = saved.targets.const_data_ptr<int64_t>(),
          .max = address(saved.max),
          .sum_exp = address(saved.sum_exp),
          .scale = address(saved.scale)};
}

}  // namespace

void cross_entropy_gradient_(const at::Tensor& logits, const CrossEntropySaved& saved,
                             const VocabRange& range) {
  const cuda::VocabShape shape = vocab_shape_of(logits, range);
  check_saved(saved, logits, shape.rows);
  if (logits.numel() == 0) return;
  if (logits.is_cuda()) {
    cuda::cross_entropy_gradient(shape, gradient_args(logits, saved), current_stream(logits));
    return;
  }
  with_float_type(logits, [&]<typename T>(T) { gradient_cpu<T>(logits, saved, shape); });
}

bool has_cross_entropy_with_gradient(const at::Tensor& logits) {
  return logits.is_cuda() && is_aligned(logits) &&
         cuda::has_cross_entropy_with_gradient(vocab_shape_of(logits, {}));
}

at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        const VocabRange& range) {
  if (!has_cross_entropy_with_gradient(logits)) {
    const auto [max, sum_exp, target_logit] = cross_entropy_statistics(logits, targets, range);
    cross_entropy_gradient_(logits, {max, sum_exp, targets, at::ones_like(max)}, range);
    return sum_exp.log() + max - target_logit;
  }
  const cuda::VocabShape shape = vocab_shape_of(logits, range);
  check_targets(targets, logits, shape.rows);
  const at::Tensor losses = at::empty({shape.rows}, logits.options().dtype(at::kFloat));
  if (shape.rows == 0) return losses;
  cuda::cross_entropy_with_gradient(shape,
                                    {.logits = address(logits),
                                     .targets = targets.const_data_ptr<int64_t>(),
                                     .losses = losses.mutable_data_ptr<float>()},
                                    current_stream(logits));
  return losses;
}

at::Tensor cross_entropy_scale_(const at::Tensor& gradient, const at::Tensor& scale) {
  const cuda::VocabShape shape = vocab_shape_of(gradient, {});
  TERATRON_ASSERT(scale.scalar_type() == accumulation_type(gradient) && scale.is_contiguous() &&
                  scale.numel() == shape.rows && scale.device() == gradient.device());
  if (shape.rows == 0) return at::ones({1}, scale.options());
  const at::Tensor largest = scale.abs().amax().view({1});
  if (gradient.is_cuda() && is_half(gradient.scalar_type())) {
    cuda::cross_entropy_scale(shape,
                              {.gradient = address(gradient),
                               .scale = scale.const_data_ptr<float>(),
                               .largest = largest.const_data_ptr<float>()},
                              current_stream(gradient));
    return largest;
  }
  const at::Tensor rows = gradient.view({shape.rows, shape.width}), column = scale.view({-1, 1});
  rows.mul_(column / largest).masked_fill_(column == 0, 0);
  return largest;
}

Fp8Matrix cross_entropy_gradient_fp8(const at::Tensor& logits, const CrossEntropySaved& saved,
                                     const VocabRange& range, const Fp8Cast& cast) {
  if (!can_fuse_fp8_cast(logits)) {
    cross_entropy_gradient_(logits, saved, range);
    return cast_to_fp8(logits, cast);
  }
  const cuda::VocabShape shape = vocab_shape_of(logits, range);
  check_saved(saved, logits, shape.rows);
  const auto [matrix, output] = allocate_fp8(logits, shape.width, cast);
  cuda::cross_entropy_gradient_fp8(shape, gradient_args(logits, saved), output, current_stream(logits));
  return matrix;
}

}  // namespace teratron
