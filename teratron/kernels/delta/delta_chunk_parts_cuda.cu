// (I + A)^-1 and P of each chunk (launchers.h). A block has a chunk and a head of keys, whose products K K^T
// and Q K^T it computes once for its heads of values. The inverse, in f32: of the two halves on the diagonal
// by substitution, a thread a column, and of the block below them by two products,
//   (I + A)^-1 = [X 0; -Y A_21 X, Y]
// Bytes: q and k once; two squares a head of values are written once.
#include "teratron/kernels/delta/delta_tile.cuh"

namespace teratron::cuda {
namespace {

constexpr int threads = 128, half_chunk = scan_chunk / 2;
constexpr float norm_eps = 1e-6f;  // added to the squared length of q and k

struct Shared {
  float A[scan_chunk][scan_chunk + 1], inverse[scan_chunk][scan_chunk + 1];
  float product[half_chunk][half_chunk + 1];
  float lengths[2][scan_chunk];
};
constexpr int tiles_at = sizeof(Shared) + 16 - sizeof(Shared) % 16;
constexpr int tokens_at = tiles_at + 2 * key_tile_bytes;
constexpr int shared_bytes = tokens_at + ChunkTokens::bytes;

template <typename T>
struct ChunkPartsBlock {
  const ScanShape& shape;
  const ScanTokens& tokens;
  const TokenRows& qkv;
  const DeltaChunkParts& parts;
  unsigned char* const memory;
  const DeltaPlace place{shape, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.z)};
  const int group = blockIdx.y;
  const int lane = threadIdx.x % 32, g = lane / 4, t2 = lane % 4 * 2, tile_row = threadIdx.x / 32 * 16;
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const KeyTile q{shared_address(memory) + tiles_at}, k{q.address + key_tile_bytes};

  __device__ void measure() const {
    const int row = threadIdx.x % scan_chunk, tensor = threadIdx.x / scan_chunk;
    const KeyTile& tile = tensor == 0 ? q : k;
    float sum = 0.0f;
#pragma unroll 4
    for (int column = 0; column < key_channels; column += 8) {
      const uint4 pack = tile.pack(row, column);
      for (const uint32_t word : {pack.x, pack.y, pack.z, pack.w}) {
        const float2 two = widen_pair<T>(word);
        sum += two.x * two.x + two.y * two.y;
      }
    }
    const float inverse_length = rsqrtf(sum + norm_eps);
    shared.lengths[tensor][row] = inverse_length;
    const int64_t all = int64_t{shape.batch} * shape.groups * shape.chunks * scan_chunk;
    parts.lengths[tensor * all + place.lengths(group) + row] = inverse_length;
  }

  /// Products of this warp's tokens with all before.
  __device__ void multiply(const KeyTile& rows, ScanAccumulators<8>& products) const {
    clear<8>(products);
#pragma unroll
    for (int c = 0; c < key_channels; c += 16) {
      uint32_t a[4], b[4];
      rows.load_a(a, tile_row, c);
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        if (8 * n > tile_row) break;
        k.load_b(b, 8 * n, c);
        mma_pair<T>(products[n], products[n + 1], a, b);
      }
    }
  }

  /// A to shared memory, P to memory.
  __device__ void decay(int head, const ScanAccumulators<8>& qk, const ScanAccumulators<8>& kk) const {
    const ChunkTokens own(memory + tokens_at);
    T* const scores = static_cast<T*>(parts.scores) + place.square(head);
    const float scale = place.scale();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = tile_row + g + 8 * half;
      const float of_q = scale * shared.lengths[0][t], of_k = own.dt[t] * shared.lengths[1][t];
      ScanAccumulators<8> p;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int s = 8 * n + t2 + i;
          const float decayed = own.between(s, t) * shared.lengths[1][s];
          p[n][2 * half + i] = of_q * qk[n][2 * half + i] * decayed;
          shared.A[t][s] = s < t ? of_k * kk[n][2 * half + i] * decayed : 0.0f;
        }
      }
#pragma unroll
      for (int n = 0; n < 8; n += 2)
        store_row<T>(scores + t * scan_chunk + 8 * n, true, p[n], p[n + 1], half);
    }
  }

  /// A column of one half on the diagonal.
  __device__ void invert_half() const {
    if (threadIdx.x >= scan_chunk) return;
    const int first = threadIdx.x / half_chunk * half_chunk, column = threadIdx.x % half_chunk;
    float x[half_chunk];
#pragma unroll
    for (int i = 0; i < half_chunk; ++i) {
      float sum[2] = {i == column ? 1.0f : 0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < i; ++j) sum[j % 2] -= shared.A[first + i][first + j] * x[j];
      x[i] = sum[0] + sum[1];
      shared.inverse[first + i][first + column] = x[i];
    }
  }
  /// Eight columns of a row of a b.
  template <typename A, typename B>
  __device__ void multiply_halves(A&& a, B&& b, float (&sum)[8]) const {
    const int row = threadIdx.x / 4, column = threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = 0.0f;
#pragma unroll 8
    for (int j = 0; j < half_chunk; ++j) {
      const float factor = a(row, j);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += factor * b(j, column + i);
    }
  }
  __device__ void invert() const {
    invert_half();
    __syncthreads();
    const int row = threadIdx.x / 4, column = threadIdx.x % 4 * 8;
    float sum[8];
    multiply_halves([&](int i, int j) { return shared.A[half_chunk + i][j]; },
                    [&](int i, int j) { return shared.inverse[i][j]; }, sum);
#pragma unroll
    for (int i = 0; i < 8; ++i) shared.product[row][column + i] = sum[i];
    __syncthreads();
    multiply_halves([&](int i, int j) { return shared.inverse[half_chunk + i][half_chunk + j]; },
                    [&](int i, int j) { return shared.product[i][j]; }, sum);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      shared.inverse[half_chunk + row][column + i] = -sum[i];
      shared.inverse[row][half_chunk + column + i] = 0.0f;
    }
    __syncthreads();
  }
  __device__ void write_inverse(int head) const {
    T* const to = static_cast<T*>(parts.inverse) + place.square(head);
#pragma unroll
    for (int i = 0; i < scan_chunk * scan_chunk / 8 / threads; ++i) {
      const int at = (i * threads + static_cast<int>(threadIdx.x)) * 8;
      float x[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = shared.inverse[at / scan_chunk][at % scan_chunk + j];
      store<8>(to + at, round_to_pack<T>(x));
    }
  }

  __device__ void run() const {
    ChunkTokens::no_documents<threads>(memory + tokens_at, tokens);
    place.copy<threads, T>(q, qkv, group * shape.state, shape.state);
    place.copy<threads, T>(k, qkv, place.keys() + group * shape.state, shape.state);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    measure();
    ScanAccumulators<8> qk, kk;
    multiply(q, qk);
    multiply(k, kk);
    const int shared_heads = shape.heads / shape.groups;
    for (int head = group * shared_heads; head < (group + 1) * shared_heads; ++head) {
      ChunkTokens::copy<threads>(shared_address(memory) + tokens_at, tokens, place, head);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      decay(head, qk, kk);
      __syncthreads();
      invert();
      write_inverse(head);
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(threads)
    chunk_parts_kernel(ScanShape shape, ScanTokens tokens, TokenRows qkv, DeltaChunkParts parts) {
  extern __shared__ __align__(16) unsigned char memory[];
  ChunkPartsBlock<T>{.shape = shape, .tokens = tokens, .qkv = qkv, .parts = parts, .memory = memory}.run();
}

}  // namespace

void delta_chunk_parts(const ScanShape& shape, const ScanTokens& tokens, const TokenRows& qkv,
                       const DeltaChunkParts& parts, CUstream_st* stream) {
  with_half_type(shape.dtype, [&]<typename T>(T) {
    allow_scan_memory(chunk_parts_kernel<T>, shared_bytes);
    chunk_parts_kernel<T><<<dim3(shape.chunks, shape.groups, shape.batch), threads, shared_bytes, stream>>>(
        shape, tokens, qkv, parts);
    check_launch("delta_chunk_parts");
  });
}

}  // namespace teratron::cuda
