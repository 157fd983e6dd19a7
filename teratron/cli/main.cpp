// The `teratron` program.
#include "teratron/cli/program.h"
#include "teratron/cli/wait_policy.h"

namespace {

void before_libraries(int, char** argv, char** envp) {
  teratron::wait_passively(argv, envp);
}

// Runs before the constructors of libraries, of which libtorch's take 0.3 s.
[[gnu::section(".preinit_array"), gnu::used]] void (*const preinit)(int, char**, char**) = before_libraries;

}  // namespace

int main(int argc, char** argv) {
  return teratron::main(argc, argv);
}
