// Compute capability 9.0 by its PTX names: TMA copies, mbarriers, clusters and wgmma. Device code must be
// built for sm_90a; what needs only sm_90 is marked so.
#pragma once

#include <cuda.h>

#include "teratron/kernels/common/async_copy.cuh"

namespace teratron::cuda::hopper {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool has_sm_90a = true;
#else
inline constexpr bool has_sm_90a = false;
#endif

/// For code that needs only sm_90; the host checks compiled_arch().
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool has_sm_90 = true;
#else
inline constexpr bool has_sm_90 = false;
#endif

/// `arrivals`: threads per phase. fence_mbarrier_init() makes the barriers visible to copies and the cluster.
__device__ inline void mbarrier_init(SharedAddress barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives and expects `bytes`: the phase ends when all threads and all bytes have arrived.
__device__ inline void mbarrier_arrive_expect_tx(SharedAddress barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void mbarrier_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives at the barrier of the same address in block `block` of this cluster.
__device__ inline void mbarrier_arrive_cluster(SharedAddress barrier, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

/// Waits for the end of the phase with this parity; a new barrier is in phase 0.
__device__ inline void mbarrier_wait(SharedAddress barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

/// Whether the phase with this parity has ended.
__device__ inline bool mbarrier_has_ended(SharedAddress barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// Copies `bytes`, a multiple of 16, to this block's shared memory and counts them on `barrier`. sm_90.
__device__ inline void bulk_load(SharedAddress to, const void* from, uint32_t bytes, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Bulk copy back to global memory. The copies since the last bulk_commit() form a group. Copies see what
/// other threads wrote if those called fence_proxy_async() before a barrier. sm_90.
__device__ inline void bulk_store(void* to, SharedAddress from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until all but the newest N groups have been read from shared memory.
template <int N>
__device__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Writes x to address `to` of block `block` of this cluster and counts 4 bytes on its `barrier`. sm_90.
__device__ inline void st_async(SharedAddress to, float x, SharedAddress barrier, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there, signal;\n"
      "mapa.shared::cluster.u32 there, %0, %3;\n"
      "mapa.shared::cluster.u32 signal, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %1, [signal];\n"
      "}" ::"r"(to),
      "r"(__float_as_uint(x)), "r"(barrier), "r"(block)
      : "memory");
}

/// The TMA box of a matrix that begins at (column, row). Elements outside the matrix are zero.
struct Box {
  const CUtensorMap& matrix;
  int column, row;
};

/// Copies a box to this block's shared memory and counts its bytes on `barrier`.
__device__ inline void tma_load(SharedAddress to, const Box& box, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(to),
      "l"(&box.matrix), "r"(barrier), "r"(box.column), "r"(box.row)
      : "memory");
}

/// Loads to one address in all blocks of the bit mask `blocks`, each counting on its own barrier.
__device__ inline void tma_load_multicast(uint16_t blocks, SharedAddress to, const Box& box,
                                          SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&box.matrix), "r"(barrier), "r"(box.column), "r"(box.row), "h"(blocks)
      : "memory");
}

/// The TMA box of one matrix of a stack of them.
struct StackBox {
  const CUtensorMap& matrices;
  int column, row, index;
};

__device__ inline void tma_load(SharedAddress to, const StackBox& box, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(&box.matrices), "r"(barrier), "r"(box.column), "r"(box.row), "r"(box.index)
      : "memory");
}
__device__ inline void tma_load_multicast(uint16_t blocks, SharedAddress to, const StackBox& box,
                                          SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&box.matrices), "r"(barrier), "r"(box.column), "r"(box.row), "r"(box.index), "h"(blocks)
      : "memory");
}

/// Fetches a box into the L2 cache.
__device__ inline void tma_prefetch(const StackBox& box) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&box.matrices),
               "r"(box.column), "r"(box.row), "r"(box.index)
               : "memory");
}

/// Writes a box from shared memory, or adds it (`add`) to what is there; elements outside the matrix are
/// dropped. Belongs to the group of the next bulk_commit(), see bulk_store().
__device__ inline void tma_store(const StackBox& box, SharedAddress from, bool add) {
  if (add) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::
            "l"(&box.matrices),
        "r"(from), "r"(box.column), "r"(box.row), "r"(box.index)
        : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
                     &box.matrices),
                 "r"(from), "r"(box.column), "r"(box.row), "r"(box.index)
                 : "memory");
  }
}

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline int cluster_size() {
  int blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
/// A cluster barrier in two halves. Makes only what fence_mbarrier_init() released visible, no other writes.
/// sm_90.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

/// True in one thread of the warp, always the same; all its threads must call it. If a condition on threadIdx
/// chooses the thread instead, the compiler wraps each TMA copy in a loop over threads. sm_90.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

/// Changes the registers per thread of this warpgroup.
template <int registers>
__device__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Named barriers of a block, 1 to 15, of `threads` threads: some sync, the others only arrive.
__device__ inline void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// wgmma operands consist of rows of 128 bytes with TMA's 128-byte swizzle. Eight rows form a group of 1024
// bytes, aligned to its size.

/// Descriptor of a k-major operand: rows of 64 bf16 along k; contiguous groups.
__device__ inline uint64_t k_major_descriptor(SharedAddress address) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (address & 0x3FFFFu) >> 4;
}
/// Descriptor of an mn-major operand: rows of 64 bf16 along m or n, one per k; groups are contiguous along k,
/// and the next 64 values of m or n are `block` bytes further.
__device__ inline uint64_t mn_major_descriptor(SharedAddress address, uint32_t block) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{block >> 4} << 16 |
         (address & 0x3FFFFu) >> 4;
}

/// The descriptor of the operand `bytes`, a multiple of 16, further in shared memory.
__device__ inline uint64_t advance_descriptor(uint64_t descriptor, uint32_t bytes) {
  // Addresses never overflow their field, the low 14 bits.
  return (descriptor & 0xFFFFFFFF00000000u) | (static_cast<uint32_t>(descriptor) + bytes / 16);
}

/// Required before the first wgmma that reads registers written by other instructions.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until all but the newest N groups are complete.
template <int N>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define TERATRON_IO(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TERATRON_IO16(i) TERATRON_IO(i), TERATRON_IO(i + 4), TERATRON_IO(i + 8), TERATRON_IO(i + 12)

/// After the wait: keeps the compiler from moving uses of the accumulators before it.
template <int N>
__device__ void wgmma_fence_registers(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// d [64, 2 N] = (add: d +) a [64, 16] b [16, 2 N] in bf16, 2 N = 192 or 256. In thread t of the
/// warpgroup, d[4 j + c] is in row 16 (t / 32) + (t % 32) / 4 + 8 (c / 2) and column 8 j + 2 (t % 4) + c % 2.
template <bool b_mn_major, bool a_mn_major = false>
__device__ void wgmma(float (&d)[96], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "%96, %97, p, 1, 1, %99, %100;\n"
      "}"
      : TERATRON_IO16(0), TERATRON_IO16(16), TERATRON_IO16(32), TERATRON_IO16(48), TERATRON_IO16(64),
        TERATRON_IO16(80)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(a_mn_major ? 1 : 0), "n"(b_mn_major ? 1 : 0));
}
template <bool b_mn_major, bool a_mn_major = false>
__device__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n"
      "}"
      : TERATRON_IO16(0), TERATRON_IO16(16), TERATRON_IO16(32), TERATRON_IO16(48), TERATRON_IO16(64),
        TERATRON_IO16(80), TERATRON_IO16(96), TERATRON_IO16(112)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(a_mn_major ? 1 : 0), "n"(b_mn_major ? 1 : 0));
}

#undef TERATRON_IO
#undef TERATRON_IO16

/// Writes four 8 x 8 tiles of 16-bit values; lane l passes the address of row l % 8 of tile l / 8.
__device__ inline void stmatrix_x4(SharedAddress row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

}  // namespace teratron::cuda::hopper
