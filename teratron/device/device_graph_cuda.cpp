#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "teratron/base/error.h"
#include "teratron/device/device_graph.h"

namespace teratron {

namespace {

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(const CudaGraph* pool_of)
      : stream_(pool_of ? pool_of->stream_ : c10::cuda::getStreamFromPool()),
        pool_(pool_of ? pool_of->pool_ : at::cuda::graph_pool_handle()) {}

  void capture(const DeviceWork& work) {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    // Relaxed: other threads pin memory and query events, and kernels may be loaded at their first use.
    graph_.capture_begin(pool_, cudaStreamCaptureModeRelaxed);
    try {
      work();
    } catch (...) {
      abort_capture();
      throw;
    }
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  // The original error says more than this one.
  void abort_capture() {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch)
    }
  }

  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

UserError not_captured(const std::string& reason) {
  return config_error(
      {.what = fmt::format("forward and backward of a micro-batch cannot be captured as a CUDA graph: {}",
                           reason.substr(0, reason.find('\n'))),
       .where = "--cuda-graph-impl",
       .fix = "Leave it out. A custom model or train step can be captured if it never waits for the device "
              "(item(), nonzero(), copies to the CPU)"});
}

// Called in a catch block.
[[noreturn]] void throw_reason() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw not_captured(error.what_without_backtrace());
  } catch (const Fault& fault) {
    if (fault.exit_code() != ExitCode::retryable) throw;
    throw not_captured(fault.what());
  }
}

}  // namespace

std::unique_ptr<DeviceGraph> capture_on_gpu(const DeviceWork& work, const DeviceGraph* pool_of) {
  c10::cuda::device_synchronize();
  // A new pool: release the memory that the steps before have left idle in the default one.
  if (!pool_of) c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<CudaGraph>(static_cast<const CudaGraph*>(pool_of));
  try {
    graph->capture(work);
  } catch (...) {
    // The allocator keeps a reference to a graph whose capture failed: leak it.
    static_cast<void>(graph.release());  // NOLINT(bugprone-unused-return-value)
    throw_reason();
  }
  return graph;
}

}  // namespace teratron
