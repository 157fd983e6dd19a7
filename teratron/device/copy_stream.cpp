#include "teratron/device/copy_stream.h"

#include <cstring>

namespace teratron {

namespace {

class CpuCopyStream : public CopyStream {
 public:
  void pin(std::span<std::byte>) override {}
  void unpin(std::span<std::byte>) override {}
  void follow_current() override {}
  void copy(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void copy_in_current(void* host, const void* device, size_t bytes) override { copy(host, device, bytes); }
  void mark() override {}
  void reset() override {}
  void wait(size_t) override {}
  void let_current_wait(size_t) override {}
};

}  // namespace

std::unique_ptr<CopyStream> make_copy_stream(at::Device device) {
  return device.is_cpu() ? std::make_unique<CpuCopyStream>() : make_gpu_copy_stream(device);
}

}  // namespace teratron
