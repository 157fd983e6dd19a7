// The program as functions, for custom programs that link libteratron (examples/).
//
//   int main(int argc, char** argv) {
//     const teratron::Registry registry = {.train_step = [](const teratron::Registry::Context&) {
//       return std::make_unique<MyTrainStep>();
//     }};
//     return teratron::main(argc, argv, registry);   // my-program pretrain gpt FLAGS...
//   }
#pragma once

#include <functional>
#include <span>
#include <string>

#include "teratron/train/registry.h"
#include "teratron/train/trainer.h"

namespace teratron {

/// The `teratron` program with the extensions in `registry`: `pretrain`, `finetune` and `plan` take all of
/// them. `generate`, `serve`, `eval` and `logits` know the models of its families, with the flags that their
/// checkpoints hold. Never throws: an error becomes a message on stderr and an exit code (base/error.h).
int main(int argc, char** argv, const Registry& registry = {});

/// Runs a custom training loop: my-program FLAGS... with the flags of `teratron pretrain gpt`. `loop`
/// receives this rank's model, data and counters; an exception ends the program as above. A signal, which
/// such a loop does not see, ends it after some seconds.
using Loop = std::function<void(Trainer&)>;
int run_loop(int argc, char** argv, const Loop& loop, const Registry& registry = {});

/// Runs `work` with the program's arguments, in a custom main(); errors end it as above.
int run_program(int argc, char** argv, const std::function<void(std::span<const std::string> args)>& work);

}  // namespace teratron
