#include "teratron/comm/host/process_world.h"

#include <new>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/comm/host/process_communicator.h"
#include "teratron/comm/torch_fault.h"

namespace teratron {
namespace {

class ProcessWorld final : public World {
 public:
  explicit ProcessWorld(std::shared_ptr<ProcessRanks> ranks) : ranks_(std::move(ranks)) {}
  int64_t rank() const override { return ranks_->rank(); }
  int64_t size() const override { return ranks_->size(); }
  std::shared_ptr<Communicator> group(const std::vector<int64_t>& ranks) override {
    return process_communicator(ranks_, ranks);
  }

 private:
  std::shared_ptr<ProcessRanks> ranks_;
};

}  // namespace

std::unique_ptr<World> process_world(std::shared_ptr<ProcessRanks> ranks) {
  return std::make_unique<ProcessWorld>(std::move(ranks));
}

void run_as_process(ProcessRanks& ranks, const std::function<void()>& body) {
  const auto fail = [&](const char* why, ExitCode code) {
    ranks.fail(fmt::format("rank {} failed: {}", ranks.rank(), why), code);
  };
  try {
    body();
    ranks.finish();
  } catch (const UserError& error) {
    fail(error.what(), error.exit_code());
    throw;
  } catch (const Fault& fault) {
    fail(fault.what(), fault.exit_code());
    throw;
  } catch (const c10::Error& error) {
    const Fault fault = to_fault(error);
    fail(fault.what(), fault.exit_code());
    throw;
  } catch (const std::bad_alloc&) {
    fail("out of host memory", ExitCode::out_of_memory);
    throw;
  } catch (const std::exception& error) {
    fail(error.what(), ExitCode::retryable);
    throw;
  }
}

}  // namespace teratron
