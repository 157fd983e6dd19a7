#include "teratron/comm/transport/mpi_transport.h"

#include <dlfcn.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using Connect = Transport* (*)();
using Version = void (*)(char* text, size_t capacity);

/// RTLD_GLOBAL: MPI's plugins look up its symbols globally. Never unloaded.
void* library() {
  return dlopen("libteratron_mpi.so", RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

bool mpi_is_available() {
  return library() != nullptr;
}

std::optional<std::string> mpi_version() {
  void* handle = library();
  void* symbol = handle ? dlsym(handle, "teratron_mpi_version") : nullptr;
  if (!symbol) return std::nullopt;
  std::string text(200, '\0');
  reinterpret_cast<Version>(symbol)(text.data(), text.size());
  return text.substr(0, text.find_first_of(std::string_view(",\n\0", 3)));
}

std::unique_ptr<Transport> connect_mpi() {
  void* handle = library();
  void* symbol = handle ? dlsym(handle, "teratron_connect_mpi") : nullptr;
  if (!symbol) {
    throw Fault(fmt::format(
        "MPI cannot be used: {}. Install libopenmpi3 (to build with MPI: libopenmpi-dev), or start "
        "the job with `teratron launch`",
        dlerror()));
  }
  Transport* transport = reinterpret_cast<Connect>(symbol)();
  if (!transport) throw Fault("MPI_Init failed; see MPI's message above");
  return std::unique_ptr<Transport>(transport);
}

}  // namespace teratron
