#include "teratron/testing/worlds.h"

#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/comm/host/process_world.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/comm/transport/socket_transport.h"
#include "teratron/comm/world.h"

namespace teratron {
namespace {

/// The launched job. GoogleTest offers no other way to pass state from main() to tests.
World* launched = nullptr;  // lint: allow(global-state): see above
bool on_gpus = false;       // lint: allow(global-state): see above

/// Listening sockets of ranks in this process.
class Listeners {
 public:
  explicit Listeners(int64_t ranks) {
    for (int64_t r = 0; r < ranks; ++r) {
      listeners_.push_back(listen_on("127.0.0.1", 0));
      addresses_[r] = {"127.0.0.1", port_of(listeners_.back())};
    }
  }

  /// Must be called for all ranks concurrently.
  std::unique_ptr<Transport> connect(int64_t rank, std::chrono::milliseconds timeout) {
    const SocketPeers peers{
        .rank = rank, .size = std::ssize(listeners_), .addresses = addresses_, .key = "key"};
    return connect_sockets(peers, std::move(listeners_[rank]), timeout);
  }

 private:
  std::vector<FileDescriptor> listeners_;
  std::map<int64_t, SocketAddress> addresses_;
};

std::string fault_of(int64_t ranks, const RankBody& body,
                     const std::function<void(const std::function<void(World&)>&)>& run) {
  std::vector<int64_t> all(ranks);
  for (int64_t r = 0; r < ranks; ++r) all[r] = r;
  try {
    run([&](World& world) { body(world, *world.group(all)); });
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.exit_code(), ExitCode::retryable);
    return fault.what();
  }
  return "no fault";
}

}  // namespace

void on_worlds(MeshOptions options, const std::function<void(const Mesh&)>& body) {
  if (options.dp == 0) options.dp = 1;
  const int64_t size = options.tp * options.cp * options.dp * options.pp;
  if (!launched) {
    run_ranks(options, body);
    run_over_sockets(size, [&](World& world) { body(Mesh(options, world)); });
    return;
  }
  if (size != launched->size())
    GTEST_SKIP() << "a mesh of " << size << " ranks in a job of " << launched->size();
  body(Mesh(options, *launched));
}

void run_over_sockets(int64_t ranks, const std::function<void(World&)>& body,
                      std::chrono::milliseconds timeout) {
  Listeners listeners(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep = [&](std::exception_ptr exception) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::move(exception);
  };
  const auto run = [&](int64_t rank) {
    try {
      const auto process = std::make_shared<ProcessBackend>(listeners.connect(rank, timeout), timeout);
      const auto world = process_world(process);
      run_as_process(*process, [&] {
        try {
          body(*world);
        } catch (...) {
          keep(std::current_exception());  // before it makes the peers fail too
          throw;
        }
      });
    } catch (...) {
      keep(std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) threads.emplace_back(run, r);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

std::string fault_over_threads(int64_t ranks, const RankBody& body, std::chrono::milliseconds timeout) {
  return fault_of(ranks, body,
                  [&](const auto& job) { run_ranks(ranks, job, ThreadOptions{.timeout = timeout}); });
}

std::string fault_over_sockets(int64_t ranks, const RankBody& body, std::chrono::milliseconds timeout) {
  return fault_of(ranks, body, [&](const auto& job) { run_over_sockets(ranks, job, timeout); });
}

std::vector<std::unique_ptr<Transport>> connected_transports(int64_t ranks) {
  Listeners listeners(ranks);
  std::vector<std::unique_ptr<Transport>> transports(ranks);
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { transports[r] = listeners.connect(r, std::chrono::minutes(1)); });
  }
  for (std::thread& thread : threads) thread.join();
  return transports;
}

void sum(Communicator& group, at::Tensor x) {
  group.all_reduce(std::move(x), ReduceOp::sum).wait();
}

std::vector<int64_t> test_sizes() {
  return launched ? std::vector{launched->size()} : std::vector<int64_t>{1, 2, 3, 4};
}

at::Tensor to_test_device(const at::Tensor& tensor) {
  return on_gpus ? tensor.to(at::kCUDA) : tensor;
}

bool sums_are_exact() {
  return !on_gpus;
}

bool same_values(const at::Tensor& tensor, const at::Tensor& expected) {
  const at::Tensor got = tensor.to(at::kCPU);
  if (sums_are_exact() || at::isIntegralType(expected.scalar_type(), true)) return at::equal(got, expected);
  const bool half = expected.scalar_type() == at::kBFloat16 || expected.scalar_type() == at::kHalf;
  const double tolerance = half ? 2e-2 : expected.scalar_type() == at::kFloat ? 1e-5 : 1e-12;
  return got.sizes() == expected.sizes() && got.scalar_type() == expected.scalar_type() &&
         at::allclose(got.to(at::kDouble), expected.to(at::kDouble), tolerance, tolerance,
                      /*equal_nan=*/true);
}

}  // namespace teratron

/// comm_test [--timeout=SECONDS (of collectives in a launched job)] [GoogleTest's flags]
int main(int argc, char** argv) {
  using namespace teratron;
  testing::InitGoogleTest(&argc, argv);
  const LaunchEnv env = read_launch_env(process_environment);
  if (env.size == 1) return RUN_ALL_TESTS();
  WorldOptions options{.timeout = std::chrono::minutes(2)};
  constexpr std::string_view flag = "--timeout=";
  if (argc == 2 && std::string_view(argv[1]).starts_with(flag)) {
    options.timeout_after_start = std::chrono::seconds(std::stoi(argv[1] + flag.size()));
  }
  const bool gpus = env.backend.value_or(Backend::nccl) == Backend::nccl && at::hasCUDA();
  if (gpus) {
    options.gpu = static_cast<int>(env.local_rank);
    options.on_hang = [](const Fault& fault) {
      error_line(fault.what());
      _exit(static_cast<int>(fault.exit_code()));
    };
  }
  int result = 0;
  run_world(env, options, [&](World& world) {
    launched = &world;
    on_gpus = gpus;
    result = RUN_ALL_TESTS();
  });
  return result;
}
