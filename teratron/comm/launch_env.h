// The launcher's environment variables: rank, world size and where to rendezvous. No torch.
//
//   teratron launch, torchrun   RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
//   mpirun (Open MPI)           OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK
//   MPICH, Intel MPI            PMI_RANK PMI_SIZE MPI_LOCALRANKID, and MASTER_ADDR
//   srun                        SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_STEP_NODELIST
//
// The first launcher whose variables are set wins. All honour MASTER_ADDR, MASTER_PORT, TERATRON_PORT_RANGE,
// TERATRON_JOB_SECRET and TERATRON_SOCKET_IFNAME, without that NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "teratron/base/environment.h"
#include "teratron/comm/transport/port_range.h"

namespace teratron {

/// How the ranks of a job communicate.
enum class Backend : uint8_t {
  threads,    // ranks are threads of one process
  processes,  // processes connected by sockets
  mpi,        // processes started by mpirun or srun, connected by MPI
  nccl,       // one GPU each, connected by NCCL
};

/// "threads", "processes", "mpi", "nccl", and back; nullopt for any other name.
std::string name_of(Backend backend);
std::optional<Backend> parse_backend(const std::string& name);

struct LaunchEnv {
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_rank = 0;      // rank on this node
  int64_t local_size = 1;      // ranks on this node; if the launcher does not say, all
  std::string master_address;  // of rank 0's node; host name or numeric
  int master_port = 29500;
  bool agent_store = false;             // torchrun's agent hosts the TCPStore
  std::optional<int> store_listen_fd;   // listening socket that `teratron launch` passes to rank 0
  std::string interface = {};           // in NCCL's form (interfaces.h); "": the one of the route to rank 0
  std::string interface_variable = {};  // that chose it
  std::optional<PortRange> ports = {};  // TERATRON_PORT_RANGE, of listening sockets
  std::string attempt = "0";            // restart count
  std::string secret = {};              // TERATRON_JOB_SECRET, to authenticate connections; "": none
  bool mpi = false;                     // started by a launcher that supports MPI_Init
  std::optional<Backend> backend = {};  // TERATRON_BACKEND; nullopt: automatic
};

/// Fewest characters of a secret.
constexpr size_t kMinSecretLength = 16;

/// Throws UserError(config) if variables are missing, invalid or contradictory.
LaunchEnv read_launch_env(const Environment& environment);

/// The threads that a rank computes with on a node of so many cores: they are divided among its ranks.
int64_t share_of_cores(const LaunchEnv& env, int64_t cores);

/// First host of a Slurm node list: "node[03-05,9],login" -> "node03".
std::string first_host(const std::string& list);

}  // namespace teratron
