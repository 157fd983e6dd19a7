// Where documents start in a chunk (launchers.h): a warp has a chunk, whose starts it scans for the latest.
// Bytes: the documents are read twice, the starts written once.
#include "teratron/kernels/common/device.cuh"
#include "teratron/kernels/mamba/launchers.h"

namespace teratron::cuda {
namespace {

__global__ void __launch_bounds__(32)
    document_starts_kernel(ScanShape shape, const int64_t* document, int* first) {
  const int chunk = blockIdx.x, batch = blockIdx.y, lane = threadIdx.x;
  const auto of = [&](int token) {
    return document[min(token, shape.tokens - 1) * int64_t{shape.batch} + batch];
  };
  int start = -1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = half * 32 + lane, token = chunk * scan_chunk + t;
    int own = token > 0 && of(token) != of(token - 1) ? t : -1;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFu, own, offset);
      if (lane >= offset) own = max(own, other);
    }
    own = max(own, start);
    start = __shfl_sync(0xFFFFFFFFu, own, 31);
    first[(int64_t{batch} * shape.chunks + chunk) * scan_chunk + t] = own;
  }
}

}  // namespace

void document_starts(const ScanShape& shape, const int64_t* document, int* first, CUstream_st* stream) {
  if (first == nullptr) return;
  document_starts_kernel<<<dim3(shape.chunks, shape.batch), 32, 0, stream>>>(shape, document, first);
  check_launch("document_starts");
}

}  // namespace teratron::cuda
