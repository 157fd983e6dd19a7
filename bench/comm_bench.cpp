// Latency of collectives on the ranks started by a launcher:
//
//   teratron launch --nproc-per-node 2 -- comm_bench
//
// "host": time for which the caller is blocked until the collective is queued and its stream waits for it.
// "all": time per call from the first call to the last result, calls in sequence. Equal on CPUs. Median of 20
// rounds of 50 calls; bf16; the size is that of the larger tensor. Printed by rank 0.
#include <algorithm>
#include <chrono>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include "teratron/base/log.h"
#include "teratron/comm/mesh/mesh.h"
#include "teratron/comm/world.h"

namespace teratron {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRounds = 20, kCalls = 50;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const Group& group, at::Device device) : group_(group), device_(device) {}

  void report(const char* name, int64_t bytes, const std::function<Work()>& call) const {
    std::vector<double> host, all;
    for (int round = -2; round < kRounds; ++round) {  // warm-up: the first calls connect the ranks
      synchronize();
      group_.communicator->barrier();
      const auto begin = Clock::now();
      for (int i = 0; i < kCalls; ++i) call().wait();
      const auto issued = Clock::now();
      synchronize();
      if (round < 0) continue;
      host.push_back(1e6 / kCalls * std::chrono::duration<double>(issued - begin).count());
      all.push_back(1e6 / kCalls * std::chrono::duration<double>(Clock::now() - begin).count());
    }
    if (group_.rank == 0)
      print("{:16} {:>8} KiB  host {:8.1f} us  all {:8.1f} us", name, bytes / 1024, median(host),
            median(all));
  }

  void report_all(int64_t count) const {
    Communicator& ranks = *group_.communicator;
    const int64_t bytes = 2 * count;
    const at::Tensor whole = at::zeros({count}, at::device(device_).dtype(at::kBFloat16));
    const at::Tensor part = at::zeros({count / group_.size}, whole.options());
    report("all_reduce", bytes, [&] { return ranks.all_reduce(whole, ReduceOp::sum); });
    report("all_gather", bytes, [&] { return ranks.all_gather(whole, part); });
    report("reduce_scatter", bytes, [&] { return ranks.reduce_scatter(part, whole, ReduceOp::sum); });
    const int64_t next = (group_.rank + 1) % group_.size,
                  previous = (group_.rank + group_.size - 1) % group_.size;
    const at::Tensor received = at::empty_like(whole);
    report("send_recv", bytes,
           [&] { return ranks.batch_isend_irecv({{whole, next, true}, {received, previous, false}}); });
  }

 private:
  void synchronize() const {
    if (device_.is_cuda()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }

  const Group& group_;
  at::Device device_;
};

void exit_on_hang(const Fault& fault) {
  error_line(fault.what());
  _exit(static_cast<int>(fault.exit_code()));
}

void bench_job() {
  const LaunchEnv env = read_launch_env(process_environment);
  WorldOptions options;
  at::Device device = at::kCPU;
  if (at::hasCUDA() && env.backend.value_or(Backend::nccl) == Backend::nccl) {
    options.gpu = static_cast<int>(env.local_rank);
    options.on_hang = exit_on_hang;
    device = {at::kCUDA, static_cast<c10::DeviceIndex>(env.local_rank)};
  }
  run_world(env, options, [&](World& world) {
    const Mesh mesh({.dp = world.size()}, world);
    const Bench bench(mesh.world(), device);
    for (const int64_t kib : {64, 1024, 16384}) bench.report_all(kib * 512 / world.size() * world.size());
  });
}

}  // namespace
}  // namespace teratron

int main() {
  try {
    teratron::bench_job();
  } catch (const std::exception& error) {
    teratron::error_line(error.what());
    return 1;
  }
}
