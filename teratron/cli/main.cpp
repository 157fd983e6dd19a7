// teratron: one program, one word for what it shall do.
#include <array>
#include <csignal>
#include <new>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/bench_command.h"
#include "teratron/cli/ckpt_command.h"
#include "teratron/cli/data_command.h"
#include "teratron/cli/env_command.h"
#include "teratron/cli/generate_command.h"
#include "teratron/cli/launch_command.h"
#include "teratron/cli/logits_command.h"
#include "teratron/cli/plan_command.h"
#include "teratron/cli/preprocess_command.h"
#include "teratron/cli/pretrain_command.h"
#include "teratron/cli/tokenizer_command.h"

namespace teratron {
namespace {

using Arguments = std::span<const std::string>;

struct Command {
  const char* name;
  int (*run)(Arguments);
  const char* help;
};

constexpr std::array<Command, 12> commands = {
    {{"pretrain", pretrain_command, "train a model: teratron pretrain gpt FLAGS..."},
     {"launch", launch_command,
      "start the ranks of a job: teratron launch --nproc-per-node 2 -- pretrain gpt FLAGS..."},
     {"plan", plan_command, "show what a command line would do, without running it"},
     {"generate", generate_command, "continue texts with a trained model"},
     {"logits", logits_command, "write the logits of token ids"},
     {"preprocess", preprocess_command, "turn JSONL into .bin/.idx"},
     {"merge", merge_command, "join .bin/.idx files"},
     {"data", data_command, "look into data sets: inspect, verify, sample, indices"},
     {"tokenizer", tokenizer_command, "train, encode, decode, info"},
     {"ckpt", ckpt_command, "checkpoints: inspect, verify, convert from and to Hugging Face"},
     {"bench", bench_command, "time the training step of a model"},
     {"env", env_command, "versions, devices, build options"}}};

void print_help() {
  print("teratron COMMAND ARGUMENTS...");
  for (const Command& command : commands) print("  {:<12}{}", command.name, command.help);
  print("Every command explains itself with --help.");
}

int dispatch(Arguments args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    print_help();
    return args.empty() ? static_cast<int>(ExitCode::config) : 0;
  }
  for (const Command& command : commands) {
    if (args[0] == command.name) return command.run(args.subspan(1));
  }
  throw config_error({.what = fmt::format("'{}' is no command", printable(args[0], 40)),
                      .where = "teratron",
                      .fix = "See `teratron --help`"});
}

int failed(ExitCode code, std::string_view message) {
  error_line(message);
  return static_cast<int>(code);
}

// What libtorch throws: memory, the device, or something we did not foresee. Its stack trace is for us, not users.
int failed(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  const bool host_memory = message.find("DefaultCPUAllocator") != std::string::npos;
  if (host_memory || dynamic_cast<const c10::OutOfMemoryError*>(&error)) {
    return failed(ExitCode::out_of_memory, message);
  }
  return failed(ExitCode::retryable, message);
}

int guarded(Arguments args) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write(), not a death
  try {
    arm_faults_from_environment();
    return dispatch(args);
  } catch (const DamagedCheckpoint& error) {
    return failed(error.exit_code(), std::string(error.what()) +
                                         "\nRestore the files from a copy, or name a sound checkpoint with "
                                         "--ckpt-step; `teratron ckpt verify` looks at every byte.");
  } catch (const UserError& error) {
    return failed(error.exit_code(), error.what());
  } catch (const Fault& fault) {
    return failed(fault.exit_code(), fault.what());
  } catch (const c10::Error& error) {
    return failed(error);
  } catch (const std::bad_alloc&) {
    return failed(ExitCode::out_of_memory, "out of host memory");
  } catch (const std::exception& error) {
    return failed(ExitCode::retryable, error.what());
  }
}

}  // namespace
}  // namespace teratron

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  return teratron::guarded(args);
}
