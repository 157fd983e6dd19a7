// What compute capability 9.0 has for products of matrices: copies of tiles by the tensor memory accelerator (TMA), barriers
// in shared memory that count bytes, and products of a warpgroup (128 threads) whose operands lie in shared memory. The
// names of the PTX ISA are in the code. Device code must be built for sm_90a; what needs sm_90 alone says so.
#pragma once

#include <cuda.h>

#include "teratron/kernels/common/async_copy.cuh"

namespace teratron::cuda::hopper {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool available = true;
#else
inline constexpr bool available = false;
#endif

/// What needs sm_90 alone; built_for() says it to the host.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool is_sm_90 = true;
#else
inline constexpr bool is_sm_90 = false;
#endif

/// `arrivals`: of threads, to a phase. init_barriers_done() makes barriers known to the copies and the cluster.
__device__ inline void init_barrier(SharedAddress barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void init_barriers_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives; the phase ends when all have arrived and so many bytes, too.
__device__ inline void arrive_expecting(SharedAddress barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Arrives at the barrier that lies at the same address in a block of this cluster.
__device__ inline void arrive_in_block(SharedAddress barrier, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

/// Waits for the end of a phase of this parity; a new barrier is in the phase of parity 0.
__device__ inline void await(SharedAddress barrier, uint32_t parity) {
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

/// Copies so many bytes, a multiple of 16, to this block's shared memory; `barrier` gets them. sm_90.
__device__ inline void copy_bytes(SharedAddress to, const void* from, uint32_t bytes, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

/// The same back to global memory. This thread's copies since end_bytes_back() before are a group; what threads wrote is seen
/// by copies that come after their wrote_for_copies() and a barrier. sm_90.
__device__ inline void copy_bytes_back(void* to, SharedAddress from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void end_bytes_back() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// All but the newest N groups have been read from shared memory.
template <int N>
__device__ void await_bytes_back_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
__device__ inline void wrote_for_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Writes x where `to` is in another block of this cluster, whose `barrier` gets 4 bytes. sm_90.
__device__ inline void send(SharedAddress to, float x, SharedAddress barrier, uint32_t block) {
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

/// The box of a matrix that begins at (column, row). What lies outside of the matrix is zeros.
struct Box {
  const CUtensorMap& matrix;
  int column, row;
};

/// Copies a box to this block's shared memory; `barrier` gets the bytes.
__device__ inline void copy_box(SharedAddress to, const Box& box, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(to),
      "l"(&box.matrix), "r"(barrier), "r"(box.column), "r"(box.row)
      : "memory");
}

/// The same to the same place in all blocks of `blocks` (bits), each of whose barriers gets the bytes.
__device__ inline void copy_box_to(uint16_t blocks, SharedAddress to, const Box& box, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&box.matrix), "r"(barrier), "r"(box.column), "r"(box.row), "h"(blocks)
      : "memory");
}

__device__ inline uint32_t block_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline int cluster_size() {
  int blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
/// The two halves of a barrier of all threads of the cluster, which makes known what init_barriers_done() released, not
/// other writes. sm_90.
__device__ inline void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void await_cluster() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

/// Registers per thread of this warpgroup from here on.
template <int registers>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/// The named barriers of a block, 1 to 15: some of `threads` wait for the others, which only arrive.
__device__ inline void arrive_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void sync_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Operands of a product lie in rows of 128 bytes, whose 16-byte pieces are swapped as TMA's 128-byte swizzle does. Eight rows
// are a group of 1024 bytes, which begins at a multiple of that.

/// An operand whose rows run along k (64 values of bf16); groups follow one another.
__device__ inline uint64_t operand_along_k(SharedAddress address) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (address & 0x3FFFFu) >> 4;
}
/// An operand whose rows run along m or n (64 values of bf16): one row for each k, groups follow one another along k, and
/// after `block` bytes come the next 64 values of m or n.
__device__ inline uint64_t operand_across_k(SharedAddress address, uint32_t block) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{block >> 4} << 16 |
         (address & 0x3FFFFu) >> 4;
}

/// The operand so many bytes, a multiple of 16, further on in shared memory.
__device__ inline uint64_t operand_after(uint64_t operand, uint32_t bytes) {
  // Addresses never carry beyond their field, the low 14 bits.
  return (operand & 0xFFFFFFFF00000000u) | (static_cast<uint32_t>(operand) + bytes / 16);
}

/// Before the first product that takes registers which other instructions wrote.
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void end_product_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// All but the newest N groups are done.
template <int N>
__device__ void await_product_groups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define TERATRON_IO(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TERATRON_IO16(i) TERATRON_IO(i), TERATRON_IO(i + 4), TERATRON_IO(i + 8), TERATRON_IO(i + 12)

/// After the wait: keeps uses of what products write behind it.
template <int N>
__device__ void products_are_in(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// d [64, 2 N] = (add: d +) a [64, 16] b [16, 2 N] in bf16, 2 N being 192 or 256. Thread t of the warpgroup holds in d[4 j + c]
/// the element of row 16 (t / 32) + (t % 32) / 4 + 8 (c / 2) and column 8 j + 2 (t % 4) + c % 2.
template <bool b_across_k>
__device__ void add_product(float (&d)[96], uint64_t a, uint64_t b, bool add) {
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
      "%96, %97, p, 1, 1, 0, %99;\n"
      "}"
      : TERATRON_IO16(0), TERATRON_IO16(16), TERATRON_IO16(32), TERATRON_IO16(48), TERATRON_IO16(64),
        TERATRON_IO16(80)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(b_across_k ? 1 : 0));
}
template <bool b_across_k>
__device__ void add_product(float (&d)[128], uint64_t a, uint64_t b, bool add) {
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
      "%128, %129, p, 1, 1, 0, %131;\n"
      "}"
      : TERATRON_IO16(0), TERATRON_IO16(16), TERATRON_IO16(32), TERATRON_IO16(48), TERATRON_IO16(64),
        TERATRON_IO16(80), TERATRON_IO16(96), TERATRON_IO16(112)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(b_across_k ? 1 : 0));
}

#undef TERATRON_IO
#undef TERATRON_IO16

/// Writes four tiles of 8 x 8 halves; lane l gives the address of row l % 8 of tile l / 8.
__device__ inline void store_four_tiles(SharedAddress row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

}  // namespace teratron::cuda::hopper
