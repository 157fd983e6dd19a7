// The `teratron` program.
#include "teratron/cli/program.h"

int main(int argc, char** argv) {
  return teratron::main(argc, argv);
}
