#include "teratron/kernels/pointwise/random_fill.h"

#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"
#include "teratron/kernels/pointwise/launchers.h"
#include "teratron/kernels/pointwise/random_value.h"

namespace teratron {
namespace {

cuda::RandomFillArgs describe(const at::Tensor& x, const Box& box, const std::vector<int64_t>& global_shape,
                              const RandomFill& fill) {
  const int64_t dims = x.dim();
  TERATRON_ASSERT(dims <= 4, "parameter of {} dimensions", dims);
  TERATRON_ASSERT(static_cast<int64_t>(global_shape.size()) == dims &&
                  static_cast<int64_t>(box.start.size()) == dims && x.sizes().vec() == box.size);
  cuda::RandomFillArgs args{.size = {1, 1, 1, 1},
                            .stride = {},
                            .global_stride = {},
                            .first = 0,
                            .x = x.data_ptr(),
                            .dtype = dtype_of(x),
                            .key = fill.key,
                            .uniform = fill.distribution == Distribution::uniform,
                            .offset = static_cast<float>(fill.offset),
                            .scale = static_cast<float>(fill.scale)};
  int64_t step = 1;
  for (int64_t d = dims - 1; d >= 0; --d) {
    const int64_t slot = d + 4 - dims;
    TERATRON_ASSERT(box.start[d] >= 0 && box.start[d] + box.size[d] <= global_shape[d],
                    "box exceeds the tensor");
    args.size[slot] = box.size[d];
    args.stride[slot] = x.stride(d);
    args.global_stride[slot] = step;
    args.first += static_cast<uint64_t>(box.start[d] * step);
    step *= global_shape[d];
  }
  return args;
}

template <typename T>
void fill_cpu(const cuda::RandomFillArgs& args) {
  const int64_t n = args.size[3];
  const int64_t lines = args.size[0] * args.size[1] * args.size[2];
  at::parallel_for(0, lines, std::max<int64_t>(1, 4096 / n), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t at[3] = {line / (args.size[1] * args.size[2]), line / args.size[2] % args.size[1],
                             line % args.size[2]};
      T* to = static_cast<T*>(args.x);
      uint64_t index = args.first;
      for (int d = 0; d < 3; ++d) {
        to += at[d] * args.stride[d];
        index += static_cast<uint64_t>(at[d] * args.global_stride[d]);
      }
      for (int64_t i = 0; i < n;) {
        const RandomQuad quad = random_block(args.key, (index + i) / 4, args.uniform);
        for (uint64_t k = (index + i) % 4; k < 4 && i < n; ++k, ++i) {
          to[i * args.stride[3]] = static_cast<T>(std::fma(args.scale, quad.value[k], args.offset));
        }
      }
    }
  });
}

}  // namespace

void random_fill_(const at::Tensor& x, const Box& box, const std::vector<int64_t>& global_shape,
                  const RandomFill& fill) {
  if (x.numel() == 0) return;
  const cuda::RandomFillArgs args = describe(x, box, global_shape, fill);
  if (x.is_cuda()) {
    cuda::random_fill(args, current_stream(x));
  } else {
    with_float_type(x, [&]<typename T>(T) { fill_cpu<T>(args); });
  }
}

void random_fill_(const at::Tensor& local, const Shard& shard, const RandomFill& fill) {
  TERATRON_ASSERT(local.sizes().vec() == shard.local_shape(), "tensor and shard differ in shape");
  const auto pieces = shard.pieces();
  if (shard.padded != 0) local.zero_();
  for (const Piece& piece : pieces) {
    const at::Tensor part =
        shard.dim < 0 ? local : local.narrow(shard.dim, piece.local_start, piece.global.size[shard.dim]);
    random_fill_(part, piece.global, shard.global_shape, fill);
  }
}

}  // namespace teratron
