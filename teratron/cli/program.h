// The program as two functions, for programs of one's own that link libteratron (examples/).
//
//   int main(int argc, char** argv) {
//     const teratron::Registry registry = {.train_step = [](const teratron::Registry::Run&) {
//       return std::make_unique<MyTrainStep>();
//     }};
//     return teratron::main(argc, argv, registry);   // my-program pretrain gpt FLAGS...
//   }
#pragma once

#include <functional>

#include "teratron/train/registry.h"
#include "teratron/train/trainer.h"

namespace teratron {

/// Everything that `teratron` does; what `registry` names takes its part in `pretrain`. Never throws: errors become one
/// message on stderr and an exit code (base/error.h).
int main(int argc, char** argv, const Registry& registry = {});

/// A training loop of one's own: my-program FLAGS... with the flags of `teratron pretrain gpt`. `loop` gets this rank's
/// model, data and counters, and what it throws ends the program as above.
using Loop = std::function<void(Training&)>;
int run_loop(int argc, char** argv, const Loop& loop, const Registry& registry = {});

}  // namespace teratron
