// teratron: one program, one word for what it shall do.
#include "teratron/cli/program.h"

int main(int argc, char** argv) {
  return teratron::main(argc, argv);
}
