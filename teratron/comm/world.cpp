#include "teratron/comm/world.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "teratron/base/file.h"
#include "teratron/comm/host/mpi_transport.h"
#include "teratron/comm/host/process_world.h"
#include "teratron/comm/host/single_world.h"
#include "teratron/comm/host/socket_transport.h"
#include "teratron/comm/host/store.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/comm/nccl/nccl_world.h"

namespace teratron {
namespace {

constexpr size_t kTokenDigits = 32;

std::unique_ptr<Wire> join_by_sockets(const Launch& launch, std::chrono::milliseconds timeout) {
  if (launch.master_address.empty()) {
    throw config_error(
        {.what = fmt::format("{} ranks, but nothing says where they meet", launch.size),
         .where = "MASTER_ADDR",
         .fix = "Set MASTER_ADDR and MASTER_PORT to an address of the machine of rank 0, or start the "
                "job with `teratron launch`"});
  }
  MeetingPoint meeting_point(launch, timeout);
  Descriptor listener = listen_on(meeting_point.own_address(), 0);
  const SocketAddress own{
      .address = meeting_point.own_address(), .port = port_of(listener), .token = random_hex(kTokenDigits)};
  SocketPlaces places{.rank = launch.rank};
  for (const std::string& text : meeting_point.exchange(to_string(own))) {
    places.addresses.push_back(parse_socket_address(text));
  }
  return connect_sockets(places, std::move(listener), timeout);
}

/// By choice, or because mpirun started us and nobody chose otherwise.
bool joins_by_mpi(const Launch& launch, Backend backend) {
  return backend == Backend::mpi || (launch.mpi && backend != Backend::processes && mpi_is_available());
}

/// Processes that share a machine share its cores, unless somebody has decided otherwise.
void share_cores(int64_t ranks) {
  if (std::getenv("OMP_NUM_THREADS")) return;
  const int64_t cores = std::thread::hardware_concurrency();
  at::set_num_threads(static_cast<int>(std::max<int64_t>(1, cores / ranks)));
}

}  // namespace

Backend choose_backend(const Launch& launch, const WorldOptions& options) {
  const bool on_gpus = options.gpu.has_value();
  const Backend fitting = on_gpus                            ? Backend::nccl
                          : launch.mpi && mpi_is_available() ? Backend::mpi
                                                             : Backend::processes;
  const Backend backend = launch.backend.value_or(fitting);
  if (launch.size > 1 && on_gpus != (backend == Backend::nccl)) {
    throw config_error({.what = fmt::format("the ranks compute on {}, which backend {} does not serve",
                                            on_gpus ? "GPUs" : "CPUs", name_of(backend)),
                        .where = "--backend",
                        .fix = on_gpus ? "Use --backend nccl, or --device cpu"
                                       : "Use --backend processes, or --device cuda where there are GPUs"});
  }
  return backend;
}

void run_world(const Launch& launch, const WorldOptions& options, const std::function<void(World&)>& body) {
  const Backend backend = choose_backend(launch, options);
  if (launch.size == 1) {
    SingleWorld world;
    return body(world);
  }
  const std::chrono::milliseconds timeout = options.timeout_after_start.value_or(options.timeout);
  if (backend == Backend::threads) return run_ranks(launch.size, body, {.timeout = timeout});
  if (!options.gpu) share_cores(launch.size);
  auto wire = joins_by_mpi(launch, backend) ? join_mpi() : join_by_sockets(launch, options.timeout);
  const auto ranks = std::make_shared<ProcessRanks>(std::move(wire), options.timeout);
  run_as_process(*ranks, [&] {
    const std::unique_ptr<World> world =
        backend == Backend::nccl ? nccl_world(ranks, {.gpu = *options.gpu, .on_stuck = options.on_stuck})
                                 : process_world(ranks);
    ranks->set_timeout(timeout);
    body(*world);
  });
}

}  // namespace teratron
