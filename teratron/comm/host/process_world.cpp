#include "teratron/comm/host/process_world.h"

#include <exception>

#include <fmt/format.h>

#include "teratron/comm/host/process_communicator.h"
#include "teratron/comm/torch_fault.h"

namespace teratron {
namespace {

class ProcessWorld final : public World {
 public:
  explicit ProcessWorld(std::shared_ptr<ProcessBackend> backend) : backend_(std::move(backend)) {}
  int64_t rank() const override { return backend_->rank(); }
  int64_t size() const override { return backend_->size(); }
  std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) override {
    return process_communicator(backend_, ranks);
  }

 private:
  std::shared_ptr<ProcessBackend> backend_;
};

}  // namespace

std::unique_ptr<World> process_world(std::shared_ptr<ProcessBackend> backend) {
  return std::make_unique<ProcessWorld>(std::move(backend));
}

void run_as_process(ProcessBackend& backend, const std::function<void()>& body) {
  try {
    body();
    backend.finish();
  } catch (const std::exception& error) {
    const Fault fault = to_fault(error);
    backend.fail(fmt::format("rank {} failed: {}", backend.rank(), fault.what()), fault.exit_code());
    throw;
  }
}

}  // namespace teratron
