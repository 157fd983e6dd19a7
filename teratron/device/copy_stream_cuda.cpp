#include <mutex>
#include <vector>

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "teratron/base/error.h"
#include "teratron/device/copy_stream.h"

namespace teratron {

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Fault(fmt::format("{} failed: {}", what, cudaGetErrorString(error)),
              error == cudaErrorMemoryAllocation ? ExitCode::out_of_memory : ExitCode::retryable);
}

class GpuCopyStream : public CopyStream {
 public:
  explicit GpuCopyStream(at::Device device) : device_(device.index()) {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading the priorities of streams");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, least), "creating a stream");
    check(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming), "creating an event");
  }
  ~GpuCopyStream() override {
    cudaStreamSynchronize(stream_);
    for (const cudaEvent_t event : marks_) cudaEventDestroy(event);
    cudaEventDestroy(fork_);
    cudaStreamDestroy(stream_);
  }

  void pin(std::span<std::byte> memory) override {
    use_device();
    check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable), "pinning host memory");
  }
  void unpin(std::span<std::byte> memory) override { cudaHostUnregister(memory.data()); }

  void follow_current() override {
    check(cudaEventRecord(fork_, current()), "recording an event");
    check(cudaStreamWaitEvent(stream_, fork_, 0), "waiting for an event");
  }
  void copy(void* host, const void* device, size_t bytes) override { copy_on(stream_, host, device, bytes); }
  void copy_in_current(void* host, const void* device, size_t bytes) override {
    copy_on(current(), host, device, bytes);
  }

  void mark() override {
    use_device();
    const std::lock_guard lock(mutex_);
    if (set_ == marks_.size()) {
      // A thread that waits sleeps.
      check(cudaEventCreateWithFlags(&marks_.emplace_back(), cudaEventDisableTiming | cudaEventBlockingSync),
            "creating an event");
    }
    check(cudaEventRecord(marks_[set_++], stream_), "recording an event");
  }
  void reset() override {
    const std::lock_guard lock(mutex_);
    set_ = 0;
  }
  void wait(size_t mark) override { check(cudaEventSynchronize(at(mark)), "copying to the host"); }
  void let_current_wait(size_t mark) override {
    check(cudaStreamWaitEvent(current(), at(mark), 0), "waiting for an event");
  }

 private:
  static cudaStream_t current() { return c10::cuda::getCurrentCUDAStream().stream(); }
  // Other threads start on the first GPU.
  void use_device() const { check(cudaSetDevice(device_), "choosing the GPU"); }
  void copy_on(cudaStream_t stream, void* host, const void* device, size_t bytes) const {
    use_device();
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream), "copying to the host");
  }
  cudaEvent_t at(size_t mark) {
    const std::lock_guard lock(mutex_);
    TERATRON_ASSERT(mark < set_, "mark {} of {}", mark, set_);
    return marks_[mark];
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t fork_ = nullptr;
  std::mutex mutex_;
  std::vector<cudaEvent_t> marks_;
  size_t set_ = 0;
};

}  // namespace

std::unique_ptr<CopyStream> make_gpu_copy_stream(at::Device device) {
  return std::make_unique<GpuCopyStream>(device);
}

}  // namespace teratron
