// A Wire over MPI, for jobs that mpirun or srun started. MPI is loaded when it is asked for: it lies in a
// shared object of its own (libteratron_mpi.so), so that the program starts where there is no MPI.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "teratron/comm/host/transport.h"

namespace teratron {

/// Whether the shared object and the MPI that it needs can be loaded.
bool mpi_is_available();
/// As the library names itself, "Open MPI v4.1.4"; nothing where it cannot be loaded.
std::optional<std::string> mpi_version();
/// Joins the job that this process was started in (MPI_Init). Throws Fault with the loader's or MPI's words.
std::unique_ptr<Wire> join_mpi();

}  // namespace teratron
