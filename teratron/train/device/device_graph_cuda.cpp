#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "teratron/base/error.h"
#include "teratron/train/device/device_graph.h"

namespace teratron {

namespace {

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(const CudaGraph* beside)
      : stream_(beside ? beside->stream_ : c10::cuda::getStreamFromPool()),
        pool_(beside ? beside->pool_ : at::cuda::graph_pool_handle()) {}

  void capture(const DeviceWork& work) {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    // Relaxed: other threads pin memory and look at events meanwhile, and a kernel may be loaded at its first use.
    graph_.capture_begin(pool_, cudaStreamCaptureModeRelaxed);
    try {
      work();
    } catch (...) {
      give_up();
      throw;
    }
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  // The reason is known already; what this says of it is less.
  void give_up() {
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
       .fix = "Leave it out. A model or train step of one's own can be captured where it never waits for the "
              "device (item(), nonzero(), copies to the CPU)"});
}

// Called where an exception is handled.
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

std::unique_ptr<DeviceGraph> capture_on_gpu(const DeviceWork& work, const DeviceGraph* beside) {
  c10::cuda::device_synchronize();
  // The graph gets memory of its own: what the steps before have left would lie idle beside it.
  if (!beside) c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<CudaGraph>(static_cast<const CudaGraph*>(beside));
  try {
    graph->capture(work);
  } catch (...) {
    // The allocator goes on asking a graph whose capture has failed: it must not die before the program.
    static_cast<void>(graph.release());  // NOLINT(bugprone-unused-return-value)
    throw_reason();
  }
  return graph;
}

}  // namespace teratron
