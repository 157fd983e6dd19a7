// OpenMP threads that wait without spinning. Spinning threads keep others from the cores: with another
// program on the machine a step on a CPU takes many times as long.
#pragma once

#include <cstring>

#include <unistd.h>

namespace teratron {

/// libgomp reads OMP_WAIT_POLICY while it is loaded. If neither that nor GOMP_SPINCOUNT is set, starts the
/// program again with the passive policy; returns otherwise, or if that fails. Needs no initialized library.
inline void wait_passively(char* const* argv, char* const* envp) {
  size_t count = 0;
  for (; envp[count]; ++count) {
    for (const char* const name : {"OMP_WAIT_POLICY=", "GOMP_SPINCOUNT="}) {
      if (std::strncmp(envp[count], name, std::strlen(name)) == 0) return;
    }
  }
  static char policy[] = "OMP_WAIT_POLICY=PASSIVE";  // lint: allow(global-state): execve takes no const
  auto** const extended = static_cast<char**>(__builtin_alloca((count + 2) * sizeof(char*)));
  std::memcpy(extended, envp, count * sizeof(char*));
  extended[count] = policy;
  extended[count + 1] = nullptr;
  execve("/proc/self/exe", argv, extended);
}

}  // namespace teratron
