// Epilogue: the activation, or its backward, of the product in shared memory.
#pragma once

#include "teratron/kernels/gemm/fused_gemm_tile.cuh"

namespace teratron::cuda::fused_gemm {

/// Iterates over a thread's rows of a half tile; it owns 8 columns.
template <typename T>
class RowCursor {
 public:
  static constexpr int packs = T::columns / 8, step = T::epilogue_threads / packs;

  __device__ RowCursor(const Params& p, const typename T::Shared& shared, const Tile& tile, int half)
      : width_(p.shape.width) {
    const int first = epilogue_thread() / packs, in_tile = half * warpgroup_rows + first,
              column = 8 * (epilogue_thread() % packs);
    const int64_t row = tile.row + in_tile, rows = min(int64_t{warpgroup_rows}, p.shape.rows - row + first);
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
  /// A pack of the product in shared memory.
  __device__ Pack<bf16, 8> product(int part) const {
    return load_shared<Pack<bf16, 8>>(product_ + part * T::half_columns * sizeof(bf16));
  }
  // Offsets in z, or dz, and in the output.
  __device__ int64_t z(int part) const { return z_ + part * width_; }
  __device__ int64_t y() const { return y_; }

 private:
  int left_ = 0;
  SharedAddress product_;
  int64_t width_, z_, y_;
};

/// Gates of eight values in batched steps: only one warp per scheduler computes here, and would stall on
/// every exp2 and reciprocal that the compiler schedules right before its use.
template <Activation kind>
__device__ void compute_gates(const float (&z)[8], float (&gate)[8]) {
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

// `batch` rows at a time, so that enough loads are in flight.

template <typename T, int batch>
__device__ void forward_rows(const Params& p, RowCursor<T>& rows) {
  Pack<bf16, 8> z[batch][T::parts], result[batch];
  RowCursor<T> ahead = rows;
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
    compute_gates<T::activation>(x[0], gate);
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
__device__ void forward_half_tile(const Params& p, RowCursor<T> rows) {
  constexpr int batch = T::gated ? 2 : 4;
#pragma unroll 1
  while (rows.left() >= batch) forward_rows<T, batch>(p, rows);
#pragma unroll 1
  while (rows.left() > 0) forward_rows<T, 1>(p, rows);
}

/// Prefetches z of a thread's rows through shared memory.
template <typename T>
class PreActivations {
 public:
  static constexpr int depth = T::prefetch_packs / T::parts;

  __device__ PreActivations(const Params& p, typename T::Shared& shared, const RowCursor<T>& rows)
      : p_(p), from_(rows), first_(shared_address(&shared.prefetch[0][epilogue_thread()])) {
#pragma unroll
    for (int d = 0; d < depth; ++d) fetch(d);
  }
  /// Returns z of the next rows and prefetches as many.
  template <int batch>
  __device__ void take(Pack<bf16, 8> (&z)[batch][T::parts]) {
    cp_async_wait<depth - batch>();
#pragma unroll
    for (int b = 0; b < batch; ++b) {
#pragma unroll
      for (int i = 0; i < T::parts; ++i) z[b][i] = load_shared<Pack<bf16, 8>>(slot(slot_, i));
      fetch(slot_);
      slot_ = slot_ + 1 == depth ? 0 : slot_ + 1;
    }
  }

 private:
  __device__ SharedAddress slot(int index, int part) const {
    return first_ + (index * T::parts + part) * T::epilogue_threads * sizeof(uint4);
  }
  __device__ void fetch(int index) {
    if (from_.left() > 0) {
#pragma unroll
      for (int i = 0; i < T::parts; ++i) cp_async(slot(index, i), p_.z_in + from_.z(i));
      from_.next();
    }
    cp_async_commit();
  }

  const Params& p_;
  RowCursor<T> from_;
  SharedAddress first_;
  int slot_ = 0;
};

template <typename T, int batch>
__device__ void backward_rows(const Params& p, RowCursor<T>& rows, PreActivations<T>& pre_activations,
                              float (&sum)[T::parts][8]) {
  Pack<bf16, 8> z[batch][T::parts], product[batch];
  RowCursor<T> ahead = rows;
#pragma unroll
  for (int b = 0; b < batch; ++b, ahead.next()) product[b] = ahead.product(0);
  pre_activations.take(z);
#pragma unroll
  for (int b = 0; b < batch; ++b, rows.next()) {
    float x[T::parts][8], gate[8] = {}, dy[8];
    widen(product[b], dy);
#pragma unroll
    for (int i = 0; i < T::parts; ++i) widen(z[b][i], x[i]);
    compute_gates<T::activation>(x[0], gate);
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
__device__ void backward_half_tile(const Params& p, RowCursor<T> rows, PreActivations<T>& pre_activations,
                                   float (&sum)[T::parts][8]) {
  constexpr int batch = T::gated ? 1 : 2;
#pragma unroll 1
  while (rows.left() >= batch) backward_rows<T, batch>(p, rows, pre_activations, sum);
  if (batch > 1 && rows.left() > 0) backward_rows<T, 1>(p, rows, pre_activations, sum);
}

/// Reduces the threads' sums to the tile's row of the dbias workspace.
template <typename T>
__device__ void store_dbias(const Params& p, typename T::Shared& shared, const Tile& tile,
                            const float (&sum)[T::parts][8]) {
  constexpr int columns = T::tile_columns, packs = columns / 8;
  const int row = epilogue_thread() / packs, first = 8 * (epilogue_thread() % packs);
#pragma unroll
  for (int i = 0; i < T::parts; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) shared.sums[row][i * columns + first + j] = sum[i][j];
  }
  named_barrier_sync(5, T::epilogue_threads);
  for (int c = epilogue_thread(); c < T::parts * columns; c += T::epilogue_threads) {
    const int64_t column = tile.column + c % columns;
    if (column >= p.shape.width || tile.row >= p.shape.rows) continue;
    float total = 0;
#pragma unroll
    for (int r = 0; r < T::rows_at_once; ++r) total += shared.sums[r][c];
    p.dbias_workspace[(tile.row / tile_rows * T::parts + c / columns) * p.shape.width + column] = total;
  }
  named_barrier_sync(5, T::epilogue_threads);
}

template <typename T>
__device__ void activation_epilogue(const Params& p, typename T::Shared& shared) {
  TileScheduler scheduler(p.shape, T::columns);
  while (scheduler.more()) {
    const Tile tile = scheduler.tile();
    float sum[T::parts][8] = {};
    scheduler.next();
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const RowCursor<T> rows(p, shared, tile, half);
      if constexpr (T::backward) {
        PreActivations<T> pre_activations(p, shared, rows);
        named_barrier_sync(full_barrier(half), warpgroup + T::epilogue_threads);
        backward_half_tile(p, rows, pre_activations, sum);
      } else {
        named_barrier_sync(full_barrier(half), warpgroup + T::epilogue_threads);
        forward_half_tile(p, rows);
      }
      if (scheduler.more()) named_barrier_arrive(empty_barrier(half), warpgroup + T::epilogue_threads);
    }
    if constexpr (T::backward) {
      if (p.dbias_workspace != nullptr) store_dbias<T>(p, shared, tile, sum);
    }
  }
}

}  // namespace teratron::cuda::fused_gemm
