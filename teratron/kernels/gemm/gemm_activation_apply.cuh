// The activation, or its gradient, of tiles of products.
#pragma once

#include "teratron/kernels/gemm/gemm_activation_tile.cuh"

namespace teratron::cuda::gemm_activation {

/// The rows of a half of a tile of which a thread has 8 columns.
template <typename T>
class Rows {
 public:
  static constexpr int packs = T::columns / 8, step = T::activators / packs;

  __device__ Rows(const Params& p, const typename T::Shared& shared, const Tile& tile, int half)
      : width_(p.shape.width) {
    const int first = activator() / packs, in_tile = half * half_rows + first,
              column = 8 * (activator() % packs);
    const int64_t row = tile.row + in_tile, rows = min(int64_t{half_rows}, p.shape.rows - row + first);
    if (tile.column + column < width_)
      left_ = static_cast<int>(max(int64_t{0}, (rows - first + step - 1) / step));
    product_ = shared_address(shared.product + in_tile * T::pitch + column);
    z_ = row * T::parts * width_ + tile.column + column;
    y_ = row * width_ + tile.column + column;
  }
  __device__ int left() const { return left_; }
  __device__ void next() {
    --left_;
    product_ += step * T::pitch * sizeof(bf16);
    z_ += step * T::parts * width_;
    y_ += step * width_;
  }
  /// Of the product in the tile: a part's columns.
  __device__ Pack<bf16, 8> product(int part) const {
    return load_shared<Pack<bf16, 8>>(product_ + part * T::half_columns * sizeof(bf16));
  }
  // Elements of a row of z, or of dz, and of the activation's result.
  __device__ int64_t z(int part) const { return z_ + part * width_; }
  __device__ int64_t y() const { return y_; }

 private:
  int left_ = 0;
  SharedAddress product_;
  int64_t width_, z_, y_;
};

/// Of eight values, step by step: only one warp of a scheduler computes here, which would wait for every exp2 and quotient that
/// the compiler puts right before its use.
template <Activation kind>
__device__ void gates_of(const float (&z)[8], float (&gate)[8]) {
  if constexpr (has_gate<kind>) {
#pragma unroll
    for (int i = 0; i < 8; ++i) gate[i] = gate_exponent<kind>(z[i]);
#pragma unroll
    for (int i = 0; i < 8; ++i) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(gate[i]));
#pragma unroll
    for (int i = 0; i < 8; ++i) gate[i] += 1.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) asm volatile("rcp.approx.ftz.f32 %0, %0;" : "+f"(gate[i]));
  }
}

// So many rows at once, so that enough is under way.

template <typename T, int batch>
__device__ void forward_rows(const Params& p, Rows<T>& rows) {
  Pack<bf16, 8> z[batch][T::parts], result[batch];
  Rows<T> ahead = rows;
#pragma unroll
  for (int b = 0; b < batch; ++b, ahead.next()) {
#pragma unroll
    for (int i = 0; i < T::parts; ++i) z[b][i] = ahead.product(i);
  }
#pragma unroll
  for (int b = 0; b < batch; ++b) {
    float x[T::parts][8], gate[8] = {}, y[8];
#pragma unroll
    for (int i = 0; i < T::parts; ++i) widen(z[b][i], x[i]);
    gates_of<T::activation>(x[0], gate);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = output_of<T::activation>(x[0][i], x[T::parts - 1][i], gate[i]);
    result[b] = round_to_pack<bf16>(y);
  }
#pragma unroll
  for (int b = 0; b < batch; ++b, rows.next()) {
    store<8>(p.out + rows.y(), result[b]);
    if (p.z_out == nullptr) continue;
#pragma unroll
    for (int i = 0; i < T::parts; ++i) store<8>(p.z_out + rows.z(i), z[b][i]);
  }
}

template <typename T>
__device__ void forward_half(const Params& p, Rows<T> rows) {
  constexpr int batch = T::gated ? 2 : 4;
#pragma unroll 1
  while (rows.left() >= batch) forward_rows<T, batch>(p, rows);
#pragma unroll 1
  while (rows.left() > 0) forward_rows<T, 1>(p, rows);
}

/// z of a thread's rows, on its way through shared memory some rows ahead of its use.
template <typename T>
class Arguments {
 public:
  static constexpr int depth = T::slots / T::parts;

  __device__ Arguments(const Params& p, typename T::Shared& shared, const Rows<T>& rows)
      : p_(p), from_(rows), first_(shared_address(&shared.ahead[0][activator()])) {
#pragma unroll
    for (int d = 0; d < depth; ++d) fetch(d);
  }
  /// Of the next rows, and sends for as many.
  template <int batch>
  __device__ void take(Pack<bf16, 8> (&z)[batch][T::parts]) {
    await_copy_groups<depth - batch>();
#pragma unroll
    for (int b = 0; b < batch; ++b) {
#pragma unroll
      for (int i = 0; i < T::parts; ++i) z[b][i] = load_shared<Pack<bf16, 8>>(slot(turn_, i));
      fetch(turn_);
      turn_ = turn_ + 1 == depth ? 0 : turn_ + 1;
    }
  }

 private:
  __device__ SharedAddress slot(int turn, int part) const {
    return first_ + (turn * T::parts + part) * T::activators * sizeof(uint4);
  }
  __device__ void fetch(int turn) {
    if (from_.left() > 0) {
#pragma unroll
      for (int i = 0; i < T::parts; ++i) copy_async(slot(turn, i), p_.z_in + from_.z(i));
      from_.next();
    }
    end_copy_group();
  }

  const Params& p_;
  Rows<T> from_;
  SharedAddress first_;
  int turn_ = 0;
};

template <typename T, int batch>
__device__ void backward_rows(const Params& p, Rows<T>& rows, Arguments<T>& arguments,
                              float (&sum)[T::parts][8]) {
  Pack<bf16, 8> z[batch][T::parts], product[batch];
  Rows<T> ahead = rows;
#pragma unroll
  for (int b = 0; b < batch; ++b, ahead.next()) product[b] = ahead.product(0);
  arguments.take(z);
#pragma unroll
  for (int b = 0; b < batch; ++b, rows.next()) {
    float x[T::parts][8], gate[8] = {}, dy[8];
    widen(product[b], dy);
#pragma unroll
    for (int i = 0; i < T::parts; ++i) widen(z[b][i], x[i]);
    gates_of<T::activation>(x[0], gate);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto gradient = gradients_of<T::activation>(dy[i], x[0][i], x[T::parts - 1][i], gate[i]);
      if constexpr (T::gated) x[1][i] = gradient.up;
      x[0][i] = gradient.z;
    }
#pragma unroll
    for (int i = 0; i < T::parts; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[i][j] += x[i][j];
      store<8>(p.out + rows.z(i), round_to_pack<bf16>(x[i]));
    }
  }
}

template <typename T>
__device__ void backward_half(const Params& p, Rows<T> rows, Arguments<T>& arguments,
                              float (&sum)[T::parts][8]) {
  constexpr int batch = T::gated ? 1 : 2;
#pragma unroll 1
  while (rows.left() >= batch) backward_rows<T, batch>(p, rows, arguments, sum);
  if (batch > 1 && rows.left() > 0) backward_rows<T, 1>(p, rows, arguments, sum);
}

/// The tile's row of partial sums out of those of the threads.
template <typename T>
__device__ void leave_sums(const Params& p, typename T::Shared& shared, const Tile& tile,
                           const float (&sum)[T::parts][8]) {
  constexpr int columns = T::tile_columns, packs = columns / 8;
  const int row = activator() / packs, first = 8 * (activator() % packs);
#pragma unroll
  for (int i = 0; i < T::parts; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) shared.sums[row][i * columns + first + j] = sum[i][j];
  }
  sync_named(5, T::activators);
  for (int c = activator(); c < T::parts * columns; c += T::activators) {
    const int64_t column = tile.column + c % columns;
    if (column >= p.shape.width || tile.row >= p.shape.rows) continue;
    float total = 0;
#pragma unroll
    for (int r = 0; r < T::rows_at_once; ++r) total += shared.sums[r][c];
    p.partial[(tile.row / tile_rows * T::parts + c / columns) * p.shape.width + column] = total;
  }
  sync_named(5, T::activators);
}

template <typename T>
__device__ void activate_tiles(const Params& p, typename T::Shared& shared) {
  Walk walk(p.shape, T::columns);
  while (walk.more()) {
    const Tile tile = walk.tile();
    float sum[T::parts][8] = {};
    walk.next();
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const Rows<T> rows(p, shared, tile, half);
      if constexpr (T::backward) {
        Arguments<T> arguments(p, shared, rows);
        sync_named(ready(half), group + T::activators);
        backward_half(p, rows, arguments, sum);
      } else {
        sync_named(ready(half), group + T::activators);
        forward_half(p, rows);
      }
      if (walk.more()) arrive_named(read(half), group + T::activators);
    }
    if constexpr (T::backward) {
      if (p.partial != nullptr) leave_sums<T>(p, shared, tile, sum);
    }
  }
}

}  // namespace teratron::cuda::gemm_activation
