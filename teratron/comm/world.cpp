#include "teratron/comm/world.h"

#include <cstdlib>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "teratron/base/log.h"
#include "teratron/comm/host/process_world.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/comm/nccl/nccl_world.h"
#include "teratron/comm/rendezvous/agent_store.h"
#include "teratron/comm/rendezvous/connect_ranks.h"
#include "teratron/comm/rendezvous/rendezvous.h"
#include "teratron/comm/single_world.h"
#include "teratron/comm/transport/mpi_transport.h"

namespace teratron {
namespace {

std::unique_ptr<Transport> connect_by_sockets(const LaunchEnv& env, std::chrono::milliseconds timeout) {
  if (env.master_address.empty()) {
    throw config_error(
        {.what = fmt::format("{} ranks, but no rendezvous address", env.size),
         .where = "MASTER_ADDR",
         .fix = "Set MASTER_ADDR and MASTER_PORT to an address of rank 0's node, or start the job with "
                "`teratron launch`"});
  }
  if (env.rank == 0 && env.secret.empty()) {
    notice(
        "the connections between ranks are not authenticated: any program that reaches {}:{} can join. "
        "`teratron launch` on one machine makes a secret; elsewhere set TERATRON_JOB_SECRET for all ranks",
        printable(env.master_address), env.master_port);
  }
  const std::unique_ptr<Rendezvous> rendezvous =
      env.agent_store ? join_agent_store(env, timeout) : join_rendezvous(env, timeout);
  return connect_ranks(env, *rendezvous, timeout);
}

/// If requested, or if mpirun started the job and no other backend was requested.
bool uses_mpi(const LaunchEnv& env, Backend backend) {
  return backend == Backend::mpi || (env.mpi && backend != Backend::processes && mpi_is_available());
}

/// Divides the cores among the ranks of this machine, unless OMP_NUM_THREADS is set.
void divide_cores(const LaunchEnv& env) {
  if (std::getenv("OMP_NUM_THREADS")) return;
  at::set_num_threads(static_cast<int>(share_of_cores(env, std::thread::hardware_concurrency())));
}

std::shared_ptr<ProcessBackend> connect(const LaunchEnv& env, Backend backend, const WorldOptions& options) {
  auto transport = uses_mpi(env, backend) ? connect_mpi() : connect_by_sockets(env, options.timeout);
  return std::make_shared<ProcessBackend>(std::move(transport), options.timeout);
}

std::unique_ptr<World> world_of(const std::shared_ptr<ProcessBackend>& ranks, Backend backend,
                                const WorldOptions& options) {
  if (backend != Backend::nccl) return process_world(ranks);
  return nccl_world(ranks, {.gpu = *options.gpu, .on_hang = options.on_hang});
}

}  // namespace

Backend choose_backend(const LaunchEnv& env, const WorldOptions& options) {
  const bool on_gpus = options.gpu.has_value();
  const Backend automatic = on_gpus                         ? Backend::nccl
                            : env.mpi && mpi_is_available() ? Backend::mpi
                                                            : Backend::processes;
  const Backend backend = env.backend.value_or(automatic);
  if (env.size > 1 && on_gpus != (backend == Backend::nccl)) {
    throw config_error({.what = fmt::format("the ranks compute on {}, which backend {} does not support",
                                            on_gpus ? "GPUs" : "CPUs", name_of(backend)),
                        .where = "--backend",
                        .fix = on_gpus ? "Use --backend nccl, or --device cpu"
                                       : "Use --backend processes, or --device cuda where there are GPUs"});
  }
  return backend;
}

void run_world(const LaunchEnv& env, const WorldOptions& options, const std::function<void(World&)>& body) {
  const Backend backend = choose_backend(env, options);
  if (env.size == 1) {
    SingleWorld world;
    return body(world);
  }
  const std::chrono::milliseconds timeout = options.timeout_after_start.value_or(options.timeout);
  if (backend == Backend::threads) return run_ranks(env.size, body, {.timeout = timeout});
  if (!options.gpu) divide_cores(env);
  const auto ranks = connect(env, backend, options);
  run_as_process(*ranks, [&] {
    const std::unique_ptr<World> world = world_of(ranks, backend, options);
    ranks->set_timeout(timeout);
    body(*world);
  });
}

JoinedWorld::JoinedWorld(const LaunchEnv& env, const WorldOptions& options) {
  const Backend backend = choose_backend(env, options);
  if (env.size == 1) {
    world_ = std::make_unique<SingleWorld>();
    return;
  }
  if (backend == Backend::threads) {
    throw config_error({.what = "the ranks of backend threads are those of one function",
                        .where = "TERATRON_BACKEND",
                        .fix = "Leave it out, or run the function with run_ranks()"});
  }
  if (!options.gpu) divide_cores(env);
  ranks_ = connect(env, backend, options);
  world_ = world_of(ranks_, backend, options);
  ranks_->set_timeout(options.timeout_after_start.value_or(options.timeout));
}

JoinedWorld::~JoinedWorld() {
  finish();
}

void JoinedWorld::finish() {
  if (ranks_ && !std::exchange(ended_, true)) ranks_->finish();
}

void JoinedWorld::fail(const std::string& reason, ExitCode code) {
  if (ranks_ && !std::exchange(ended_, true)) ranks_->fail(reason, code);
}

}  // namespace teratron
