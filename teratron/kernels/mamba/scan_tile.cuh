// What the kernels of the chunked recurrence share: tiles in shared memory, and rows of accumulators. Lanes
// are those of mma.cuh: g = lane / 4 is a row, t = lane % 4 a pair of columns.
#pragma once

#include "teratron/kernels/common/mma.cuh"
#include "teratron/kernels/mamba/launchers.h"

namespace teratron::cuda {

/// A [rows, D] tile of 16-bit values in shared memory, D a multiple of 16. Rows are padded by 16 bytes, so
/// that the rows of an 8 x 8 matrix are in different banks.
template <int D>
struct PaddedTile {
  static constexpr int stride = 2 * (D + 8);  // bytes
  static constexpr int bytes(int rows) { return rows * stride; }

  SharedAddress address;

  __device__ SharedAddress at(int row, int column) const { return address + row * stride + 2 * column; }
  /// A: rows row ... row + 15, columns column ... column + 15.
  __device__ void load_a(uint32_t (&a)[4], int row, int column) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(a, at(row + lane % 16, column + lane / 16 * 8));
  }
  /// A of the transposed tile: its rows are columns column ... of the tile, along k the rows row ...
  __device__ void load_a_transposed(uint32_t (&a)[4], int row, int column) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(a, at(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
  }
  /// Two B = tile^T: {b[0], b[1]} of rows row ... row + 7 as columns, {b[2], b[3]} of the next 8; along k
  /// the columns column ... column + 15.
  __device__ void load_b(uint32_t (&b)[4], int row, int column) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(b, at(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
  }
  /// Two B = tile: {b[0], b[1]} of columns column ... column + 7, {b[2], b[3]} of the next 8; along k the
  /// rows row ... row + 15.
  __device__ void load_b_rows(uint32_t (&b)[4], int row, int column) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(b, at(row + lane % 16, column + lane / 16 * 8));
  }
  /// The pair of columns column and column + 1.
  template <typename T>
  __device__ float2 pair(int row, int column) const {
    uint32_t two;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(two) : "r"(at(row, column)) : "memory");
    return widen_pair<T>(two);
  }
  /// The eight values from `column` on, a multiple of 8.
  __device__ uint4 pack(int row, int column) const { return load_shared<uint4>(at(row, column)); }
  __device__ void set_pair(int row, int column, uint32_t two) const {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at(row, column)), "r"(two) : "memory");
  }
};

/// Starts copying `rows` rows of `columns` values; zeros beyond, up to D columns, and in rows from `valid`
/// on.
template <int D, int rows, int threads, typename T>
__device__ void copy_tile(const PaddedTile<D>& tile, const T* from, int64_t stride, int valid, int columns) {
  constexpr int packs = D / 8;
  const auto copy = [&](int row, int column) {
    const bool inside = row < valid && column < columns;
    cp_async_or_zero<16>(tile.at(row, column), inside ? from + row * stride + column : from, inside);
  };
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (threads % packs == 0 && rows % (threads / packs) == 0) {
    constexpr int step = threads / packs;
#pragma unroll
    for (int row = 0; row < rows; row += step) copy(row + thread / packs, thread % packs * 8);
  } else {
    for (int i = thread; i < rows * packs; i += threads) copy(i / packs, i % packs * 8);
  }
}

template <int N>
using ScanAccumulators = float[N][4];

template <int N>
__device__ void clear(ScanAccumulators<N>& x) {
#pragma unroll
  for (int n = 0; n < N; ++n) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0.0f;
}

/// Two neighboring accumulators += a b.
template <typename T>
__device__ void mma_pair(float (&low)[4], float (&high)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  mma<T>(low, a, b[0], b[1]);
  mma<T>(high, a, b[2], b[3]);
}

/// Where a lane writes in store_row(), of 16 columns: two lanes exchange words, so that each has 8 bytes.
__device__ inline int store_column() {
  return threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4;
}
/// Writes 16 columns of a row, of which a lane has the pairs `low` of the first 8 and `high` of the others.
/// All lanes take part.
template <typename T>
__device__ void store_words(T* row, bool valid, uint32_t low, uint32_t high) {
  const bool odd = threadIdx.x % 2 == 1;
  const uint32_t received = __shfl_xor_sync(0xFFFFFFFFu, odd ? low : high, 1);
  const uint2 words = odd ? make_uint2(received, high) : make_uint2(low, received);
  if (valid) *reinterpret_cast<uint2*>(row + store_column()) = words;
}
/// Writes row g of two neighboring accumulators, or of row g + 8 if `half`.
template <typename T>
__device__ void store_row(T* row, bool valid, const float (&low)[4], const float (&high)[4], int half) {
  store_words<T>(row, valid, round_pair<T>(low[2 * half], low[2 * half + 1]),
                 round_pair<T>(high[2 * half], high[2 * half + 1]));
}

/// The dot product of eight values each.
template <typename T>
__device__ float dot(const uint4& a, const uint4& b) {
  const auto of_pair = [](uint32_t x, uint32_t y) {
    const float2 first = widen_pair<T>(x), second = widen_pair<T>(y);
    return first.x * second.x + first.y * second.y;
  };
  return (of_pair(a.x, b.x) + of_pair(a.y, b.y)) + (of_pair(a.z, b.z) + of_pair(a.w, b.w));
}

/// The sum over the lanes of a row.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/// A chunk of a sequence.
struct ChunkPlace {
  const ScanShape& shape;
  int chunk, batch;

  /// Its tokens.
  __device__ int valid() const { return shape.tokens - chunk * scan_chunk; }
  __device__ int64_t row_of(int token) const {
    return (chunk * scan_chunk + token) * int64_t{shape.batch} + batch;
  }
  /// The first of its tokens in ScanTokens of a head, and in ScanTokens::first.
  __device__ int64_t tokens_of(int head) const {
    return ((int64_t{batch} * shape.heads + head) * shape.chunks + chunk) * scan_chunk;
  }
  __device__ int64_t first_tokens() const { return (int64_t{batch} * shape.chunks + chunk) * scan_chunk; }
  /// The state of a head, [B, chunks, H, P, N].
  __device__ int64_t state(int head) const {
    return ((int64_t{batch} * shape.chunks + chunk) * shape.heads + head) * shape.head_dim * shape.state;
  }
};

/// ScanTokens of a chunk and head in shared memory.
struct ChunkTokens {
  static constexpr int bytes = 5 * 4 * scan_chunk;
  const float *dt, *gamma, *start, *end;
  const int* first;

  __device__ explicit ChunkTokens(const unsigned char* memory)
      : dt(reinterpret_cast<const float*>(memory)),
        gamma(dt + scan_chunk),
        start(gamma + scan_chunk),
        end(start + scan_chunk),
        first(reinterpret_cast<const int*>(end + scan_chunk)) {}
  /// Starts copying them; without documents `first` must be filled once by no_documents(), before a barrier.
  template <int threads>
  __device__ static void copy(SharedAddress to, const ScanTokens& tokens, const ChunkPlace& place, int head) {
    constexpr int packs = scan_chunk / 4;
    const int64_t at = place.tokens_of(head);
    const int arrays = tokens.first == nullptr ? 4 : 5;
    for (int i = static_cast<int>(threadIdx.x); i < arrays * packs; i += threads) {
      const int array = i / packs;
      const void* const from = array == 0   ? tokens.dt + at
                               : array == 1 ? tokens.gamma + at
                               : array == 2 ? tokens.start + at
                               : array == 3 ? static_cast<const void*>(tokens.end + at)
                                            : tokens.first + place.first_tokens();
      cp_async(to + 16 * i, static_cast<const uint4*>(from) + i % packs);
    }
  }
  template <int threads>
  __device__ static void no_documents(unsigned char* memory, const ScanTokens& tokens) {
    if (tokens.first != nullptr) return;
    for (int i = static_cast<int>(threadIdx.x); i < scan_chunk; i += threads)
      reinterpret_cast<int*>(memory + 16 * scan_chunk)[i] = -1;
  }

  /// The decay from token s to t; 0 from one document to another.
  __device__ float between(int s, int t) const {
    return s <= t && s >= first[t] ? fast_exp(gamma[t] - gamma[s]) : 0.0f;
  }
  /// The decay from the state before the chunk to that after it.
  __device__ float carry() const { return start[scan_chunk - 1]; }
};

template <typename Kernel>
void allow_scan_memory(Kernel* kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "scan");
}

/// Calls f(T{}, channels of a head that are compiled for).
template <typename F>
void with_scan(const ScanShape& shape, F&& f) {
  const auto of_type = [&](auto t) {
    if (shape.head_dim <= 64) return f(t, std::integral_constant<int, 64>{});
    if (shape.head_dim <= 80) return f(t, std::integral_constant<int, 80>{});
    f(t, std::integral_constant<int, max_scan_head_dim>{});
  };
  if (shape.dtype == Dtype::bf16) return of_type(__nv_bfloat16{});
  of_type(__half{});
}

}  // namespace teratron::cuda
