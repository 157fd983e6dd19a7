#include "teratron/cli/program.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "teratron/base/background_log.h"
#include "teratron/base/config/flag_reader.h"
#include "teratron/base/config/spelling.h"
#include "teratron/base/config/wrap.h"
#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/cli/build_info.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/published/published_program.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/wait_policy.h"
#include "teratron/comm/torch_fault.h"
#include "teratron/settings/component_options.h"
#include "teratron/settings/secret_flags.h"
#include "teratron/train/loop/pretrain.h"

namespace teratron {
namespace {

using Args = std::span<const std::string>;

struct Command {
  const char* name;
  std::function<int(Args)> run;
  const char* help;
  bool prints_result = true;  // stdout is its result, not a log
};

std::vector<Command> commands(const Registry& registry) {
  const auto pretrain = [&](Args args) { return pretrain_command(args, registry); };
  const auto finetune = [&](Args args) { return finetune_command(args, registry); };
  const auto plan = [&](Args args) { return plan_command(args, registry); };
  const auto generate = [&](Args args) { return generate_command(args, registry); };
  const auto serve = [&](Args args) { return serve_command(args, registry); };
  const auto eval = [&](Args args) { return eval_command(args, registry); };
  const auto logits = [&](Args args) { return logits_command(args, registry); };
  return {{"pretrain", pretrain, "train a model: teratron pretrain gpt FLAGS...", false},
          {"finetune", finetune,
           "train a model on your examples: teratron finetune --hf DIR --data-path FILE", false},
          {"launch", launch_command,
           "start the ranks of a job: teratron launch --nproc-per-node 2 -- pretrain gpt FLAGS...", false},
          {"plan", plan, "check a training command line without running it"},
          {"generate", generate, "generate text with a trained model"},
          {"chat", chat_program, "chat with a trained model in the terminal"},
          {"serve", serve, "answer HTTP requests with a trained model, and show a page", false},
          {"eval", eval, "evaluate a model on JSON lines: continuations, choices, answers"},
          {"tasks", tasks_command,
           "evaluate a GPT on WikiText-103 or LAMBADA, finetune a BERT on RACE, MNLI or QQP"},
          {"logits", logits, "compute the logits of token ids"},
          {"preprocess", preprocess_command, "convert JSON lines to indexed datasets (.bin/.idx)"},
          {"merge", merge_command, "concatenate indexed datasets"},
          {"data", data_command, "indexed datasets: inspect, verify, sample, indices, mapping"},
          {"tokenizer", tokenizer_command, "tokenizers: train, encode, decode, info, chat"},
          {"ckpt", ckpt_command,
           "checkpoints: inspect, verify, convert from and to Hugging Face and Megatron-LM, merge-lora"},
          {"report", report_command, "write the report of a run: curves, evaluations, texts, settings"},
          {"config", config_command, "write a configuration file interactively"},
          {"bench", bench_command, "time training, or `bench generate`, `bench serve`"},
          {"env", env_command, "show versions, devices and build options"}};
}

// Commands of other programs, by the last part of their path, and what is typed instead.
constexpr std::pair<std::string_view, std::string_view> foreign_commands[] = {
    {"train", "pretrain gpt FLAGS..."},
    {"train.py", "pretrain gpt FLAGS..."},
    {"torchrun", "launch --nproc-per-node N -- pretrain gpt FLAGS..."},
    {"accelerate", "launch --nproc-per-node N -- pretrain gpt FLAGS..."},
    {"evaluate", "eval --load CHECKPOINT --data FILE.jsonl"},
    {"estimate-memory", "plan gpt --gpu-memory SIZE FLAGS..."},
    {"convert", "ckpt convert FLAGS..."},
};

std::string_view answer_to_foreign(std::string_view command) {
  const std::string_view name = command.substr(command.rfind('/') + 1);
  for (const auto& [foreign, answer] : foreign_commands) {
    if (name == foreign) return answer;
  }
  return "";
}

UserError unknown_command(std::string_view command, const std::vector<Command>& known) {
  std::vector<std::string> names;
  for (const Command& each : known) names.emplace_back(each.name);
  const std::string_view answer = answer_to_foreign(command);
  const std::string near = nearest_spelling(command, names);
  return config_error({.what = fmt::format("'{}' is not a command", printable(command, 40)),
                       .where = "teratron",
                       .fix = !answer.empty() ? fmt::format("Use `teratron {}`", answer)
                              : near.empty()  ? "See `teratron --help`"
                                              : fmt::format("Did you mean {}?", near)});
}

void print_help(const std::vector<Command>& known) {
  print("usage: teratron COMMAND ARGUMENTS...\n");
  for (const Command& command : known) print("  {:<12}{}", command.name, wrap(command.help, 14, 100));
  print("\nexample:\n  teratron pretrain gpt --model-preset gpt2 --mock-data");
  print("\n`teratron COMMAND --help` describes a command, `teratron --version` prints the version.");
}

int run(const Command& command, Args args) {
  const int code = command.run(args);
  if (code == 0 && command.prints_result && std::ferror(stdout) != 0) {
    throw Fault("the output could not be written completely. Check the disk or the program reading the pipe");
  }
  return code;
}

int dispatch(Args args, const Registry& registry) {
  const std::vector<Command> known = commands(registry);
  if (args.empty() || is_help(args[0]) || args[0] == "help") {
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
  if (const auto command = command_of_program(args)) return dispatch(*command, registry);
  throw unknown_command(args[0], known);
}

int report(const std::exception& error, std::string_view advice = "") {
  const Fault fault = to_fault(error);
  error_line(fmt::format("{}{}", fault.what(), advice));
  return static_cast<int>(fault.exit_code());
}

// After a GPU failure libtorch throws while freeing memory, in destructors, where nothing can catch it.
[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const c10::Error& error) {
    const int code = report(error);
    flush_log();
    std::_Exit(code);
  } catch (const std::exception& error) {
    error_line(error.what());
  } catch (...) {
    error_line("unknown exception");
  }
  flush_log();
  std::abort();
}

// Runs `work`; an exception becomes a message on stderr and an exit code.
int exit_code_of(const std::function<int()>& work) {
  try {
    arm_faults_from_environment();
    return work();
  } catch (const CorruptCheckpoint& error) {
    return report(
        error,
        "\nRestore the files from a copy, or select an intact checkpoint with --ckpt-step; `teratron "
        "ckpt verify` checks every byte.");
  } catch (const std::exception& error) {
    return report(error);
  }
}

using Work = std::function<int(const std::vector<std::string>& args)>;

int guarded(int argc, char** argv, const Work& work) {
  hide_secrets(argv);  // in a program of its user; `teratron` has done so earlier
  wait_passively(argv, environ);
  std::set_terminate(on_terminate);
  std::signal(SIGXFSZ, SIG_IGN);  // make a file size limit an error of write()
  const int code = exit_code_of([&] { return work(take_arguments(argc, argv)); });
  flush_log();
  return code;
}

}  // namespace

int main(int argc, char** argv, const Registry& registry) {
  return guarded(argc, argv, [&](const auto& args) { return dispatch(args, registry); });
}

int run_loop(int argc, char** argv, const Loop& loop, const Registry& registry) {
  return guarded(argc, argv, [&](const auto& args) {
    const JobModel model = default_model(registry);
    return run_job(args, model, [&](const ParsedArguments& parsed, World& world, const StopSignals&) {
      const Mesh mesh(mesh_options(parsed.args), world);
      if (mesh.rank() == 0) print_line(dump_changes(parsed));
      Trainer trainer(parsed.args, mesh, model);
      loop(trainer);
      trainer.saver().finish();
      return ExitCode::ok;
    });
  });
}

int run_program(int argc, char** argv, const std::function<void(std::span<const std::string> args)>& work) {
  return guarded(argc, argv, [&](const auto& args) {
    work(args);
    return static_cast<int>(ExitCode::ok);
  });
}

}  // namespace teratron
