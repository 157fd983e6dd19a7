#include "teratron/comm/nccl/nccl_world.h"

#include <numeric>
#include <utility>

#include <c10/cuda/CUDAFunctions.h>

#include "teratron/comm/nccl/nccl_watchdog.h"
#include "teratron/kernels/common/cuda_libraries.h"

namespace teratron {
namespace {

class NcclWorld final : public World {
 public:
  NcclWorld(std::shared_ptr<ProcessBackend> backend, const NcclOptions& options)
      : backend_(std::move(backend)), watchdog_(backend_, options.gpu, options.on_hang) {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(options.gpu));
    std::vector<int64_t> ranks(size());
    std::iota(ranks.begin(), ranks.end(), 0);
    host_ = std::make_unique<NcclCommunicator>(backend_, ranks);
  }

  /// No buffers are freed while a peer may still read from them.
  ~NcclWorld() override {
    if (!backend_->failure()) synchronize();
    if (backend_->failure()) watchdog_.close_all();  // if this hangs, the watchdog ends the process
    watchdog_.stop();
    watchdog_.close_all();
  }

  int64_t rank() const override { return backend_->rank(); }
  int64_t size() const override { return backend_->size(); }

  std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) override {
    auto communicator = std::make_shared<NcclCommunicator>(backend_, ranks);
    watchdog_.watch(communicator);
    return communicator;
  }

 private:
  void synchronize() noexcept {
    try {
      c10::cuda::device_synchronize();
      host_->barrier();
    } catch (const std::exception& error) {
      backend_->fail(error.what(), ExitCode::retryable);
    }
  }

  std::shared_ptr<ProcessBackend> backend_;
  NcclWatchdog watchdog_;
  std::unique_ptr<NcclCommunicator> host_;
};

}  // namespace

std::optional<std::string> nccl_version() {
  if (!has_cuda_libraries()) return std::nullopt;
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "unknown";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<World> nccl_world(std::shared_ptr<ProcessBackend> backend, NcclOptions options) {
  return std::make_unique<NcclWorld>(std::move(backend), options);
}

}  // namespace teratron
