// The questions of Accelerate's configuration wizard and the YAML file written from the answers.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace teratron {

/// The answers that apply to Teratron.
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

/// Asks on `output` and reads answers from `input`, in Accelerate's order. An empty line or the end of the
/// input selects the default; an invalid answer repeats the question. `gpus`: GPUs per machine, for the
/// default number of processes.
WizardAnswers ask(std::istream& input, std::ostream& output, int64_t gpus);

/// The YAML file of Accelerate's wizard, with comments.
std::string accelerate_yaml(const WizardAnswers& answers);

}  // namespace teratron
