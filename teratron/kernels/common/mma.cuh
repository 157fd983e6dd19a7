// Tensor-core products of a warp on 16-bit values (mma.sync m16n8k16, compute capability 8.0) and the loads
// of their operands from shared memory.
//
// In lane l of the warp, with g = l / 4 and t = l % 4:
//   A [16, 16]  a[0], a[1]: columns 2 t and 2 t + 1 of rows g and g + 8; a[2], a[3]: columns 8 further
//   B [16, 8]   b0: rows 2 t and 2 t + 1 of column g; b1: rows 8 further
//   C [16, 8]   c[0], c[1]: columns 2 t and 2 t + 1 of row g; c[2], c[3]: of row g + 8, in f32
// So two neighboring C, rounded, are an A.
#pragma once

#include "teratron/kernels/common/async_copy.cuh"

namespace teratron::cuda {

/// Four 8 x 8 matrices; lane l passes the address of row l % 8 of matrix l / 8, and receives columns 2 t and
/// 2 t + 1 of row g of each matrix; `trans`: of each transposed matrix.
__device__ inline void ldmatrix_x4(uint32_t (&m)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&m)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row)
               : "memory");
}

/// Transposes an 8 x 8 matrix: lane l passes columns 2 t and 2 t + 1 of row g, and receives rows 2 t and
/// 2 t + 1 of column g.
__device__ inline uint32_t movmatrix_trans(uint32_t m) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(m));
  return transposed;
}

/// c += a b.
template <typename T>
__device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Two values rounded to T, the first in the low half.
template <typename T>
__device__ uint32_t round_pair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    memcpy(&pair, &two, sizeof(pair));
  } else {
    const __half2 two = __floats2half2_rn(low, high);
    memcpy(&pair, &two, sizeof(pair));
  }
  return pair;
}

/// The values of a pair, in f32.
template <typename T>
__device__ float2 widen_pair(uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
  } else {
    __half2 two;
    memcpy(&two, &pair, sizeof(pair));
    return __half22float2(two);
  }
}

/// A [rows, D] tile of 16-bit values in shared memory; D = 64 or 128. The 16-byte packs of a row are
/// permuted by its index, so that the rows of an 8 x 8 matrix are in different banks.
template <int D>
struct SharedTile {
  SharedAddress address;

  /// Byte offset of the pack of `column`, a multiple of 8.
  __host__ __device__ static int offset(int row, int column) {
    return 2 * D * row + 16 * (column / 8 ^ row % 8);
  }

  /// A: rows row ... row + 15, columns column ... column + 15.
  __device__ void load_a(uint32_t (&a)[4], int row, int column) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(a, address + offset(row + lane % 16, column + lane / 16 * 8));
  }
  /// Two B = tile^T: {b[0], b[1]} of rows row ... row + 7 as columns, {b[2], b[3]} of the next 8; along k
  /// the columns column ... column + 15.
  __device__ void load_b(uint32_t (&b)[4], int row, int column) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(b, address + offset(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
  }
  /// Two B = tile: {b[0], b[1]} of columns column ... column + 7, {b[2], b[3]} of the next 8; along k the
  /// rows row ... row + 15.
  __device__ void load_b_rows(uint32_t (&b)[4], int row, int column) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4_trans(b, address + offset(row + lane % 16, column + lane / 16 * 8));
  }
};

}  // namespace teratron::cuda
