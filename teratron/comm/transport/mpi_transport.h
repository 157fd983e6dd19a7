// Transport over MPI, for jobs started by mpirun or srun. MPI is loaded on demand from libteratron_mpi.so, so
// that the program also runs without MPI.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "teratron/comm/transport/transport.h"

namespace teratron {

/// Whether the shared library and the MPI that it needs can be loaded.
bool mpi_is_available();
/// E.g. "Open MPI v4.1.4"; nullopt if MPI cannot be loaded.
std::optional<std::string> mpi_version();
/// Joins the job in which this process was started (MPI_Init). Throws Fault with the loader's or MPI's
/// message.
std::unique_ptr<Transport> connect_mpi();

}  // namespace teratron
