#include "teratron/cli/program.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "teratron/base/config/spelling.h"
#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/bench_command.h"
#include "teratron/cli/build_info.h"
#include "teratron/cli/ckpt_command.h"
#include "teratron/cli/config_command.h"
#include "teratron/cli/data_command.h"
#include "teratron/cli/env_command.h"
#include "teratron/cli/generate_command.h"
#include "teratron/cli/launch_command.h"
#include "teratron/cli/logits_command.h"
#include "teratron/cli/plan_command.h"
#include "teratron/cli/preprocess_command.h"
#include "teratron/cli/pretrain_command.h"
#include "teratron/cli/tokenizer_command.h"
#include "teratron/comm/torch_fault.h"
#include "teratron/settings/mesh_settings.h"
#include "teratron/train/pretrain.h"

namespace teratron {
namespace {

using Arguments = std::span<const std::string>;

struct Command {
  const char* name;
  std::function<int(Arguments)> run;
  const char* help;
  bool prints_result = true;  // what it prints is its result, not its log
};

std::vector<Command> commands(const Registry& registry) {
  const auto pretrain = [&](Arguments args) { return pretrain_command(args, registry); };
  return {{"pretrain", pretrain, "train a model: teratron pretrain gpt FLAGS...", false},
          {"launch", launch_command,
           "start the ranks of a job: teratron launch --nproc-per-node 2 -- pretrain gpt FLAGS...", false},
          {"plan", plan_command, "show what a command line would do, without running it"},
          {"generate", generate_command, "continue texts with a trained model"},
          {"logits", logits_command, "write the logits of token ids"},
          {"preprocess", preprocess_command, "turn JSONL into .bin/.idx"},
          {"merge", merge_command, "join .bin/.idx files"},
          {"data", data_command, "look into data sets: inspect, verify, sample, indices"},
          {"tokenizer", tokenizer_command, "train, encode, decode, info"},
          {"ckpt", ckpt_command, "checkpoints: inspect, verify, convert from and to Hugging Face"},
          {"config", config_command, "asks a few questions and writes a configuration file"},
          {"bench", bench_command, "time the training step of a model"},
          {"env", env_command, "versions, devices, build options"}};
}

void print_help(const std::vector<Command>& known) {
  print("teratron COMMAND ARGUMENTS...");
  for (const Command& command : known) print("  {:<12}{}", command.name, command.help);
  print("Every command explains itself with --help. `teratron --version` prints the version.");
}

int run(const Command& command, Arguments args) {
  const int code = command.run(args);
  if (code == 0 && command.prints_result && std::ferror(stdout) != 0) {
    throw Fault("the output could not be written to its end. Check the disk or the program behind the pipe");
  }
  return code;
}

int dispatch(Arguments args, const Registry& registry) {
  const std::vector<Command> known = commands(registry);
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    print_help(known);
    return args.empty() ? static_cast<int>(ExitCode::config) : 0;
  }
  if (args[0] == "--version" || args[0] == "version") {
    print("teratron {}", TERATRON_VERSION);
    return 0;
  }
  for (const Command& command : known) {
    if (args[0] == command.name) return run(command, args.subspan(1));
  }
  std::vector<std::string> names;
  for (const Command& command : known) names.emplace_back(command.name);
  const std::string near = nearest_spelling(args[0], names);
  throw config_error({.what = fmt::format("'{}' is no command", printable(args[0], 40)),
                      .where = "teratron",
                      .fix = near.empty() ? "See `teratron --help`" : fmt::format("Did you mean {}?", near)});
}

int failed(ExitCode code, std::string_view message) {
  error_line(message);
  return static_cast<int>(code);
}

// A GPU that failed makes libtorch throw where it gives memory back, in destructors, which nothing can catch.
[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const c10::Error& error) {
    const Fault fault = to_fault(error);
    std::_Exit(failed(fault.exit_code(), fault.what()));
  } catch (const std::exception& error) {
    error_line(error.what());
  } catch (...) {
    error_line("an exception of an unknown kind");
  }
  std::abort();
}

// Runs `work`; whatever it throws becomes a message and an exit code.
int guarded(const std::function<int()>& work) {
  std::set_terminate(on_terminate);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write(), not a death
  try {
    arm_faults_from_environment();
    return work();
  } catch (const DamagedCheckpoint& error) {
    return failed(error.exit_code(), std::string(error.what()) +
                                         "\nRestore the files from a copy, or name a sound checkpoint with "
                                         "--ckpt-step; `teratron ckpt verify` looks at every byte.");
  } catch (const UserError& error) {
    return failed(error.exit_code(), error.what());
  } catch (const Fault& fault) {
    return failed(fault.exit_code(), fault.what());
  } catch (const c10::Error& error) {
    const Fault fault = to_fault(error);
    return failed(fault.exit_code(), fault.what());
  } catch (const std::bad_alloc&) {
    return failed(ExitCode::out_of_memory, "out of host memory");
  } catch (const std::exception& error) {
    return failed(ExitCode::retryable, error.what());
  }
}

}  // namespace

int main(int argc, char** argv, const Registry& registry) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  return guarded([&] { return dispatch(args, registry); });
}

int run_loop(int argc, char** argv, const Loop& loop, const Registry& registry) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  return guarded([&] {
    return run_job(args, registry, [&](const ParsedArguments& parsed, World& world, const StopSignals&) {
      const Mesh mesh(mesh_options(parsed.args), world);
      if (mesh.rank() == 0) print_line(dump(parsed));
      Training training(parsed.args, mesh, registry);
      loop(training);
      training.finish_save();
      return ExitCode::ok;
    });
  });
}

}  // namespace teratron
