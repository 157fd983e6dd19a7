// The `teratron` program.
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "teratron/cli/program.h"
#include "teratron/cli/wait_policy.h"
#include "teratron/settings/secret_flags.h"

namespace {

void before_libraries(int, char** argv, char** envp) {
  teratron::hide_secrets(argv);
  teratron::wait_passively(argv, envp);
}

// Runs before the constructors of libraries, of which libtorch's take 0.3 s.
[[gnu::section(".preinit_array"), gnu::used]] void (*const preinit)(int, char**, char**) = before_libraries;

}  // namespace

int main(int argc, char** argv) {
  const int code = teratron::main(argc, argv);
  // Without the destructors of libraries, of which libtorch's take 0.1 s.
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}
