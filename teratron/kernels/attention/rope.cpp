#include "teratron/kernels/attention/rope.h"

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"

namespace teratron {
namespace {

cuda::RopeStrides strides_of(const at::Tensor& x) {
  return {.s = x.stride(0), .b = x.stride(1), .outer = x.dim() == 5 ? x.stride(2) : 0, .inner = x.stride(-2)};
}

/// Arguments of a copy from x to out.
cuda::RopeArgs describe(const at::Tensor& x, const at::Tensor& out) {
  TERATRON_ASSERT(x.dim() == 4 || x.dim() == 5, "RoPE input of {} dimensions", x.dim());
  TERATRON_ASSERT(x.sizes() == out.sizes() && x.scalar_type() == out.scalar_type());
  TERATRON_ASSERT(x.stride(-1) == 1 && out.stride(-1) == 1, "the channels are not contiguous");
  return {.in = x.const_data_ptr(),
          .out = out.data_ptr(),
          .in_strides = strides_of(x),
          .out_strides = strides_of(out),
          .length = x.size(0),
          .batch = x.size(1),
          .outer = x.dim() == 5 ? x.size(2) : 1,
          .inner = x.size(-2),
          .channels = x.size(-1),
          .dtype = dtype_of(x)};
}

cuda::RopeArgs describe(const at::Tensor& x, const at::Tensor& out, const RopeTable& table,
                        const at::Tensor& positions, const RopeOptions& options) {
  cuda::RopeArgs args = describe(x, out);
  require_rotation(x, table, positions);
  args.rotated = 2 * table.cos.size(1);
  args.cos = table.cos.const_data_ptr();
  args.sin = table.sin.const_data_ptr();
  args.positions = positions.const_data_ptr<int64_t>();
  args.position_stride_s = positions.stride(0);
  args.position_stride_b = positions.stride(1);
  args.interleaved = options.style == RopeStyle::interleaved;
  args.inverse = options.direction == RopeDirection::inverse;
  return args;
}

/// One head of one token; `in` may be `out`.
template <typename T, typename A>
void rotate_head(const T* in, T* out, const A* cos, const A* sin, const cuda::RopeArgs& args) {
  const int64_t half = args.rotated / 2;
  const A sign = args.inverse ? A(-1) : A(1);
  const int64_t step = args.interleaved ? 2 : 1;
  const int64_t partner = args.interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const A a = static_cast<A>(in[i * step]), b = static_cast<A>(in[i * step + partner]);
    const A s = sign * sin[i];
    out[i * step] = static_cast<T>(a * cos[i] - b * s);
    out[i * step + partner] = static_cast<T>(b * cos[i] + a * s);
  }
  if (in != out) std::copy(in + args.rotated, in + args.channels, out + args.rotated);
}

template <typename T>
void rope_cpu(const cuda::RopeArgs& args, int64_t table_rows) {
  using A = Accumulator<T>;
  const int64_t half = args.rotated / 2;
  at::parallel_for(0, args.length * args.batch, 16, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t s = token / args.batch, b = token % args.batch;
      const int64_t position = args.positions[s * args.position_stride_s + b * args.position_stride_b];
      TERATRON_ASSERT(position >= 0 && position < table_rows, "position {} of {}", position, table_rows);
      const A* const cos = static_cast<const A*>(args.cos) + position * half;
      const A* const sin = static_cast<const A*>(args.sin) + position * half;
      const T* const in = static_cast<const T*>(args.in) + s * args.in_strides.s + b * args.in_strides.b;
      T* const out = static_cast<T*>(args.out) + s * args.out_strides.s + b * args.out_strides.b;
      for (int64_t o = 0; o < args.outer; ++o) {
        for (int64_t i = 0; i < args.inner; ++i) {
          rotate_head(in + o * args.in_strides.outer + i * args.in_strides.inner,
                      out + o * args.out_strides.outer + i * args.out_strides.inner, cos, sin, args);
        }
      }
    }
  });
}

void run(const at::Tensor& x, const at::Tensor& out, const RopeTable& table, const at::Tensor& positions,
         const RopeOptions& options) {
  const cuda::RopeArgs args = describe(x, out, table, positions, options);
  if (x.numel() == 0) return;
  if (x.is_cuda()) {
    cuda::rope(args, current_stream(x));
    return;
  }
  with_float_type(x, [&]<typename T>(T) { rope_cpu<T>(args, table.cos.size(0)); });
}

}  // namespace

void require_rotation(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions) {
  const auto type = accumulation_type(x);
  for (const at::Tensor* t : {&table.cos, &table.sin}) {
    TERATRON_ASSERT(t->dim() == 2 && t->is_contiguous() && t->scalar_type() == type &&
                    t->device() == x.device());
  }
  TERATRON_ASSERT(table.cos.sizes() == table.sin.sizes());
  const int64_t rotated = 2 * table.cos.size(1);
  TERATRON_ASSERT(rotated <= x.size(-1), "{} rotated channels of {}", rotated, x.size(-1));
  TERATRON_ASSERT(positions.scalar_type() == at::kLong && positions.device() == x.device());
  TERATRON_ASSERT(positions.dim() == 2 && positions.size(0) == x.size(0) && positions.size(1) == x.size(1));
}

void rope_(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions,
           const RopeOptions& options) {
  run(x, x, table, positions, options);
}

void rope_into(const at::Tensor& x, const at::Tensor& out, const RopeTable& table,
               const at::Tensor& positions, const RopeOptions& options) {
  run(x, out, table, positions, options);
}

void copy_heads(const at::Tensor& x, const at::Tensor& out) {
  if (x.is_cuda() && x.numel() > 0) {
    cuda::rope(describe(x, out), current_stream(x));
  } else {
    out.copy_(x);
  }
}

at::Tensor rope(const at::Tensor& x, const RopeTable& table, const at::Tensor& positions,
                const RopeOptions& options) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  run(x, out, table, positions, options);
  return out;
}

}  // namespace teratron
