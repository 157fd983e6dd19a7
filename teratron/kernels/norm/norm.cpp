#include "teratron/kernels/norm/norm.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/norm/launchers.h"

namespace teratron {
namespace {

// Rows per partial sum of the parameter gradients: fixed, so that the order of additions does not depend on
// the number of threads.
constexpr int64_t rows_per_partial = 64;

cuda::NormShape shape_of(const at::Tensor& x, const NormParameters& p, const NormOptions& options) {
  const RowShape rows = rows_of(x);
  return {.rows = rows.count,
          .width = rows.width,
          .dtype = dtype_of(x),
          .weight_dtype = dtype_of(p.weight),
          .eps = options.eps,
          .rms = options.kind == NormKind::rms,
          .zero_centered = options.zero_centered};
}

void check_parameters(const at::Tensor& x, const NormParameters& p) {
  const int64_t n = x.size(-1);
  require_float(p.weight, "weight");
  TERATRON_ASSERT(p.weight.numel() == n && p.weight.device() == x.device(), "weight does not fit x");
  TERATRON_ASSERT(p.weight.scalar_type() == x.scalar_type() || p.weight.scalar_type() == at::kFloat);
  if (p.bias.defined()) require_like(p.bias, p.weight, n, "bias");
}

/// Effective weight and bias in the accumulation type.
template <typename A>
struct Affine {
  std::vector<A> gain, shift;
  Affine(const NormParameters& p, const NormOptions& options) {
    const auto type = c10::CppTypeToScalarType<A>::value;
    const at::Tensor w = p.weight.to(type);
    gain.assign(w.const_data_ptr<A>(), w.const_data_ptr<A>() + w.numel());
    if (options.zero_centered) {
      for (A& g : gain) g += 1;
    }
    shift.assign(gain.size(), A(0));
    if (p.bias.defined()) {
      const at::Tensor b = p.bias.to(type);
      convert(b.const_data_ptr<A>(), shift.data(), b.numel());
    }
  }
};

template <typename A>
A sum_of(const A* x, int64_t n) {
  A lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) lanes[k] += x[i + k];
  }
  for (; i < n; ++i) lanes[i % 8] += x[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <typename A>
A dot(const A* x, const A* y, int64_t n) {
  A lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) lanes[k] += x[i + k] * y[i + k];
  }
  for (; i < n; ++i) lanes[i % 8] += x[i] * y[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/// h of one row, rounded to T if it is stored, so that forward and backward normalize the same values.
template <typename T, typename A>
void add_row(const at::Tensor& x, const NormAddends& added, int64_t row, A* h, T* sum) {
  const int64_t n = x.size(-1);
  convert(x.const_data_ptr<T>() + row * n, h, n);
  if (added.bias.defined()) {
    const T* bias = added.bias.const_data_ptr<T>();
    for (int64_t i = 0; i < n; ++i) h[i] += static_cast<A>(bias[i]);
  }
  if (added.residual.defined()) {
    const T* residual = added.residual.const_data_ptr<T>() + row * n;
    for (int64_t i = 0; i < n; ++i) h[i] += static_cast<A>(residual[i]);
  }
  if (sum != nullptr) {
    convert(h, sum, n);
    convert(sum, h, n);
  }
}

template <typename T>
void forward_cpu(const at::Tensor& x, const NormAddends& added, const NormParameters& p,
                 const NormOptions& options, NormOutput& out) {
  using A = Accumulator<T>;
  const auto [rows, n] = rows_of(x);
  const Affine<A> affine(p, options);
  const bool rms = options.kind == NormKind::rms;
  T* const sum = out.sum.is_same(x) ? nullptr : out.sum.mutable_data_ptr<T>();
  T* const y = out.y.mutable_data_ptr<T>();
  A* const means = rms ? nullptr : out.mean.mutable_data_ptr<A>();
  A* const rstds = out.rstd.mutable_data_ptr<A>();
  at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / n), [&](int64_t begin, int64_t end) {
    std::vector<A> h(n);
    for (int64_t row = begin; row < end; ++row) {
      add_row<T, A>(x, added, row, h.data(), sum ? sum + row * n : nullptr);
      if (!rms) {
        means[row] = sum_of(h.data(), n) / static_cast<A>(n);
        for (A& v : h) v -= means[row];
      }
      const A variance = dot(h.data(), h.data(), n) / static_cast<A>(n);
      const A rstd = rstds[row] = A(1) / std::sqrt(variance + static_cast<A>(options.eps));
      for (int64_t i = 0; i < n; ++i) {
        y[row * n + i] = static_cast<T>(h[i] * rstd * affine.gain[i] + affine.shift[i]);
      }
    }
  });
}

/// Backward of one row: normalizes xhat in place, and leaves dx, without the residual gradient, in g.
template <typename A>
struct BackwardRow {
  const A* dy;
  const A* gain;
  A* xhat;  // h on entry
  A* g;
  A mean, rstd;
  bool rms;

  void run(int64_t n) const {
    for (int64_t i = 0; i < n; ++i) xhat[i] = (xhat[i] - mean) * rstd;
    for (int64_t i = 0; i < n; ++i) g[i] = dy[i] * gain[i];
    const A mean_g = rms ? A(0) : sum_of(g, n) / static_cast<A>(n);
    const A mean_gx = dot(g, xhat, n) / static_cast<A>(n);
    for (int64_t i = 0; i < n; ++i) g[i] = rstd * (g[i] - mean_g - xhat[i] * mean_gx);
  }
};

struct BackwardInputs {
  const at::Tensor& dy;
  const at::Tensor& dresidual;
  const NormSaved& saved;
};

struct BackwardOutputs {
  at::Tensor dx;
  ColumnSum dweight, dbias, dx_sum;
};

template <typename T>
void backward_cpu(const BackwardInputs& in, const NormParameters& parameters, const NormOptions& options,
                  const BackwardOutputs& out) {
  using A = Accumulator<T>;
  const at::Tensor &dy = in.dy, &dresidual = in.dresidual;
  const NormSaved& saved = in.saved;
  const Affine<A> affine(parameters, options);
  const bool rms = options.kind == NormKind::rms;
  const auto [rows, n] = rows_of(dy);
  const int64_t partials = (rows + rows_per_partial - 1) / rows_per_partial;
  const bool has_bias = out.dbias.out().defined();
  std::vector<A> dweight(partials * n), dbias(has_bias ? partials * n : 0);
  const T* const extra = dresidual.defined() ? dresidual.const_data_ptr<T>() : nullptr;
  const A* const means = rms ? nullptr : saved.mean.const_data_ptr<A>();
  const A* const rstds = saved.rstd.const_data_ptr<A>();
  T* const dx = out.dx.mutable_data_ptr<T>();
  at::parallel_for(0, partials, 1, [&](int64_t begin, int64_t end) {
    std::vector<A> grad(n), xhat(n), g(n);
    for (int64_t row = begin * rows_per_partial; row < std::min(rows, end * rows_per_partial); ++row) {
      convert(dy.const_data_ptr<T>() + row * n, grad.data(), n);
      convert(saved.sum.const_data_ptr<T>() + row * n, xhat.data(), n);
      BackwardRow<A>{
          grad.data(), affine.gain.data(), xhat.data(), g.data(), rms ? A(0) : means[row], rstds[row], rms}
          .run(n);
      A* const dw = dweight.data() + row / rows_per_partial * n;
      for (int64_t i = 0; i < n; ++i) dw[i] += grad[i] * xhat[i];
      if (has_bias) {
        A* const db = dbias.data() + row / rows_per_partial * n;
        for (int64_t i = 0; i < n; ++i) db[i] += grad[i];
      }
      if (extra != nullptr) {
        for (int64_t i = 0; i < n; ++i) g[i] += static_cast<A>(extra[row * n + i]);
      }
      convert(g.data(), dx + row * n, n);
    }
  });
  const auto finalize = [&, n = n](std::vector<A>& partial, const GradSink& sink) {
    finalize_column_sums<A>(
        {.workspace = partial.data(), .out = address(sink.out), .accumulate = sink.accumulate}, partials, n);
  };
  finalize(dweight, out.dweight.sink());
  if (has_bias) finalize(dbias, out.dbias.sink());
}

void backward_cuda(const BackwardInputs& in, const NormParameters& p, const NormOptions& options,
                   BackwardOutputs& out) {
  const auto& [dy, dresidual, saved] = in;
  cuda::NormShape shape = shape_of(dy, p, options);
  shape.sums_dx = p.dx_sum_sink && out.dbias.out().defined() && cuda::norm_backward_can_sum_dx(shape);
  if (shape.sums_dx) out.dx_sum = ColumnSum(p.dx_sum_sink, shape.width, out.dweight.out().options());
  const int64_t workspace_rows = cuda::norm_backward_workspace_rows(shape);
  cuda::norm_backward(shape,
                      {.dy = address(dy),
                       .dresidual = address(dresidual),
                       .sum = address(saved.sum),
                       .mean = address(saved.mean),
                       .rstd = address(saved.rstd),
                       .weight = address(p.weight),
                       .dx = address(out.dx),
                       .dweight = out.dweight.reduction(workspace_rows),
                       .dbias = out.dbias.reduction(workspace_rows),
                       .dx_sum = out.dx_sum.reduction(workspace_rows)},
                      current_stream(dy));
}

}  // namespace

NormOutput norm_forward(const at::Tensor& x, const NormAddends& added, const NormParameters& parameters,
                        const NormOptions& options) {
  require_float(x, "x");
  check_parameters(x, parameters);
  if (added.residual.defined()) require_like(added.residual, x, x.numel(), "residual");
  if (added.bias.defined()) require_like(added.bias, x, x.size(-1), "added bias");
  const int64_t rows = rows_of(x).count;
  const auto statistics = x.options().dtype(accumulation_type(x));
  const bool adds = added.residual.defined() || added.bias.defined();
  NormOutput out{.y = at::empty_like(x),
                 .sum = adds ? at::empty_like(x) : x,
                 .mean = options.kind == NormKind::rms ? at::Tensor() : at::empty({rows}, statistics),
                 .rstd = at::empty({rows}, statistics)};
  if (rows == 0) return out;
  if (x.is_cuda()) {
    cuda::norm_forward(shape_of(x, parameters, options),
                       {.x = address(x),
                        .residual = address(added.residual),
                        .added_bias = address(added.bias),
                        .weight = address(parameters.weight),
                        .bias = address(parameters.bias),
                        .sum = adds ? address(out.sum) : nullptr,
                        .y = address(out.y),
                        .mean = address(out.mean),
                        .rstd = address(out.rstd)},
                       current_stream(x));
    return out;
  }
  with_float_type(x, [&]<typename T>(T) { forward_cpu<T>(x, added, parameters, options, out); });
  return out;
}

NormGradients norm_backward(const at::Tensor& dy, const at::Tensor& dresidual, const NormSaved& saved,
                            const NormParameters& parameters, const NormOptions& options) {
  require_float(dy, "dy");
  check_parameters(dy, parameters);
  require_like(saved.sum, dy, dy.numel(), "sum");
  if (dresidual.defined()) require_like(dresidual, dy, dy.numel(), "dresidual");
  const auto statistics = dy.options().dtype(accumulation_type(dy));
  const int64_t n = dy.size(-1);
  BackwardOutputs out{.dx = at::empty_like(dy), .dweight = ColumnSum(parameters.dweight_sink, n, statistics)};
  if (parameters.bias.defined()) out.dbias = ColumnSum(parameters.dbias_sink, n, statistics);
  if (dy.numel() == 0) {
    out.dweight.zero();
    out.dbias.zero();
  } else if (dy.is_cuda()) {
    backward_cuda({dy, dresidual, saved}, parameters, options, out);
  } else {
    with_float_type(
        dy, [&]<typename T>(T) { backward_cpu<T>({dy, dresidual, saved}, parameters, options, out); });
  }
  NormGradients gradients{
      .dx = out.dx, .dweight = out.dweight.out(), .dbias = out.dbias.out(), .dx_sum = out.dx_sum.out()};
  if (parameters.dx_sum_sink && !gradients.dx_sum.defined())
    gradients.dx_sum = column_sum(out.dx, *parameters.dx_sum_sink);
  return gradients;
}

}  // namespace teratron
