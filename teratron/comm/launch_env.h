// How this process was started, read from what launchers leave in the environment. No torch.
//
//   teratron launch, torchrun   RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
//   mpirun (Open MPI)           OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK
//   MPICH, Intel MPI            PMI_RANK PMI_SIZE MPI_LOCALRANKID, and MASTER_ADDR
//   srun                        SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_STEP_NODELIST
//
// The first of these that is there counts. MASTER_ADDR and MASTER_PORT are honoured under all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "teratron/base/environment.h"

namespace teratron {

/// What carries the ranks' messages.
enum class Backend : uint8_t {
  threads,    // ranks are threads of one process
  processes,  // processes, over sockets
  mpi,        // processes that mpirun or srun started, over MPI
  nccl,       // a GPU each, over NCCL
};

/// "threads", "processes", "mpi", "nccl", and back; nothing for another name.
std::string name_of(Backend backend);
std::optional<Backend> backend_from(const std::string& name);

struct Launch {
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_rank = 0;      // among the ranks of this machine
  std::string master_address;  // where rank 0 can be reached; a name or numbers
  int master_port = 29500;
  bool store_runs = false;            // torchrun keeps the rendezvous store itself
  std::optional<int> store_listener;  // our launcher gives rank 0 a socket that listens already
  std::string attempt = "0";          // how often the job was started again
  bool mpi = false;                   // an MPI start-up can be joined
  std::optional<Backend> backend;     // TERATRON_BACKEND; nothing: what fits
};

/// Throws UserError(config) when the variables contradict each other or miss one.
Launch read_launch(const Environment& environment);

/// The first name of a compressed list: "node[03-05,9],login" -> "node03".
std::string first_host(const std::string& list);

}  // namespace teratron
