// teratron config [--config-file FILE] [--default]
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace teratron {

/// Answers of Accelerate's wizard that mean something here.
struct WizardAnswers {
  int64_t machines = 1;
  int64_t tensor_parallel = 1;
  bool sequence_parallel = true;
  int64_t pipeline_parallel = 1;
  int64_t micro_batches = 1;
  bool recompute_activations = true;
  bool distributed_optimizer = true;
  double gradient_clipping = 1.0;
  int64_t processes = 1;
  std::string mixed_precision = "no";  // no, fp16, bf16 or fp8
  bool use_cpu = false;
};

/// Asks on `output` and reads from `input`, in Accelerate's order. An empty line, and the end of the input, mean the
/// default; a wrong answer is asked for again. `gpus`: how many there are, the default number of processes.
WizardAnswers ask(std::istream& input, std::ostream& output, int64_t gpus);

/// The YAML file that Accelerate's wizard would write, with a comment for every line that deserves one.
std::string accelerate_yaml(const WizardAnswers& answers);

/// `args` come after the word "config". Returns the exit code; throws UserError and Fault.
int config_command(std::span<const std::string> args);

}  // namespace teratron
