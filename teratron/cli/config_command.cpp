#include <charconv>
#include <iostream>

#include <CLI/CLI.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/config/config.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/config_wizard.h"
#include "teratron/train/device/device.h"

namespace teratron {

namespace {

class Wizard {
 public:
  Wizard(std::istream& input, std::ostream& output) : input_(input), output_(output) {}

  // Repeats the question until `parse` accepts the answer; an empty one selects the default.
  template <typename T>
  T ask(const std::string& question, T fallback,
        const std::function<std::optional<T>(const std::string&)>& parse) {
    while (true) {
      output_ << question << ' ' << std::flush;
      std::string answer;
      if (!next_line(input_, answer, "standard input", 4096) || answer.empty()) return fallback;
      if (const std::optional<T> value = parse(answer)) return *value;
      output_ << "Not a valid answer.\n";
    }
  }

  bool yes_or_no(const std::string& question, bool fallback) {
    return ask<bool>(fmt::format("{} [{}]:", question, fallback ? "YES/no" : "yes/NO"), fallback,
                     [](const std::string& answer) -> std::optional<bool> {
                       if (answer == "yes" || answer == "y" || answer == "YES") return true;
                       if (answer == "no" || answer == "n" || answer == "NO") return false;
                       return std::nullopt;
                     });
  }

  int64_t at_least_one(const std::string& question, int64_t fallback) {
    return ask<int64_t>(fmt::format("{} [{}]:", question, fallback), fallback,
                        [](const std::string& answer) { return number<int64_t>(answer, 1); });
  }

  double not_negative(const std::string& question, double fallback) {
    return ask<double>(fmt::format("{} [{:.1f}]:", question, fallback), fallback,
                       [](const std::string& answer) { return number<double>(answer, 0); });
  }

  std::string one_of(const std::string& question, const std::vector<std::string>& choices) {
    return ask<std::string>(fmt::format("{} [{}]:", question, fmt::join(choices, "/")), choices.front(),
                            [&](const std::string& answer) -> std::optional<std::string> {
                              if (std::find(choices.begin(), choices.end(), answer) == choices.end())
                                return {};
                              return answer;
                            });
  }

 private:
  template <typename T>
  static std::optional<T> number(const std::string& text, T least) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    return whole && value >= least ? std::optional(value) : std::nullopt;
  }

  std::istream& input_;
  std::ostream& output_;
};

const char* text_of(bool value) {
  return value ? "true" : "false";
}

}  // namespace

WizardAnswers ask(std::istream& input, std::ostream& output, int64_t gpus) {
  Wizard wizard(input, output);
  WizardAnswers answers;
  const std::string machine = wizard.one_of("Which type of machine are you using?",
                                            gpus > 0 ? std::vector<std::string>{"multi-GPU", "multi-CPU"}
                                                     : std::vector<std::string>{"multi-CPU", "multi-GPU"});
  answers.use_cpu = machine == "multi-CPU";
  answers.machines = wizard.at_least_one(
      "How many different machines will you use (use more than 1 for multi-node training)?", 1);
  answers.tensor_parallel = wizard.at_least_one("What is the Tensor Parallelism degree/size?", 1);
  answers.sequence_parallel =
      answers.tensor_parallel > 1 && wizard.yes_or_no("Do you want to enable Sequence Parallelism?", true);
  answers.pipeline_parallel = wizard.at_least_one("What is the Pipeline Parallelism degree/size?", 1);
  if (answers.pipeline_parallel > 1) {
    answers.micro_batches = wizard.at_least_one("What is the number of micro-batches?", 1);
  }
  answers.recompute_activations =
      wizard.yes_or_no("Do you want to enable selective activation recomputation?", true);
  answers.distributed_optimizer = wizard.yes_or_no(
      "Do you want to use distributed optimizer which shards optimizer state and gradients across data "
      "parallel "
      "ranks?",
      true);
  answers.gradient_clipping =
      wizard.not_negative("What is the gradient clipping value based on global L2 Norm (0 to disable)?", 1.0);
  const int64_t ranks = std::max<int64_t>({1, answers.use_cpu ? 1 : gpus * answers.machines,
                                           answers.tensor_parallel * answers.pipeline_parallel});
  answers.processes = wizard.at_least_one(fmt::format("How many {} should be used for distributed training?",
                                                      answers.use_cpu ? "processes" : "GPU(s)"),
                                          ranks);
  answers.mixed_precision =
      wizard.one_of("Do you wish to use mixed precision?", {"no", "fp16", "bf16", "fp8"});
  return answers;
}

std::string accelerate_yaml(const WizardAnswers& answers) {
  return fmt::format(
      "# Settings for `teratron pretrain gpt --config-file THIS`; any flag can be a key. Flags take "
      "precedence.\n"
      "compute_environment: LOCAL_MACHINE\n"
      "distributed_type: MEGATRON_LM\n"
      "machine_rank: 0\n"
      "megatron_lm_config:\n"
      "  megatron_lm_gradient_clipping: {}\n"
      "  # Global batch size = micro_batch_size x data-parallel size x this\n"
      "  megatron_lm_num_micro_batches: {}\n"
      "  megatron_lm_pp_degree: {}\n"
      "  megatron_lm_recompute_activations: {}\n"
      "  megatron_lm_sequence_parallelism: {}\n"
      "  megatron_lm_tp_degree: {}\n"
      "  megatron_lm_use_distributed_optimizer: {}\n"
      "mixed_precision: '{}'\n"
      "num_machines: {}\n"
      "# A multiple of tp_degree x pp_degree; the quotient is the data-parallel size\n"
      "num_processes: {}\n"
      "use_cpu: {}\n",
      python_str(answers.gradient_clipping), answers.micro_batches, answers.pipeline_parallel,
      text_of(answers.recompute_activations), text_of(answers.sequence_parallel), answers.tensor_parallel,
      text_of(answers.distributed_optimizer), answers.mixed_precision, answers.machines, answers.processes,
      text_of(answers.use_cpu));
}

int config_command(std::span<const std::string> args) {
  std::string file = "teratron.yaml";
  bool take_defaults = false;
  CLI::App app("Ask for machines, parallelism and precision, and write a configuration file",
               "teratron config");
  app.add_option("--config-file", file, "file to write; must not exist")->capture_default_str();
  app.add_flag("--default", take_defaults, "use every default without asking");
  if (!parse_command(app, args)) return 0;
  if (std::filesystem::exists(file)) {
    throw config_error({.what = "the file exists already",
                        .where = printable(file, 1000),
                        .fix = "Use another --config-file, or remove it"});
  }
  std::istream nothing(nullptr);
  std::ostream nowhere(nullptr);
  const WizardAnswers answers =
      take_defaults ? ask(nothing, nowhere, gpu_count()) : ask(std::cin, std::cout, gpu_count());
  write_text(file, accelerate_yaml(answers), ExitCode::config);
  print("Wrote {}. Next: teratron pretrain gpt --config-file {} FLAGS...", file, file);
  return 0;
}

}  // namespace teratron
