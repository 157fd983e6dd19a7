// The questions of Accelerate's configuration wizard and the YAML file written from the answers.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace teratron {

enum class MachineKind : uint8_t { single_process, multi_cpu, multi_gpu };

/// Answers; those that were not asked for are null.
struct WizardAnswers {
  MachineKind machine = MachineKind::multi_gpu;
  bool use_cpu = false;
  int64_t machines = 1;
  int64_t machine_rank = 0;
  std::optional<std::string> address;  // of machine 0
  std::optional<int64_t> port;
  bool megatron = true;
  int64_t tensor_parallel = 1;
  std::optional<bool> sequence_parallel;
  int64_t pipeline_parallel = 1;
  std::optional<int64_t> micro_batches;
  bool recompute_activations = true;
  bool distributed_optimizer = true;
  double gradient_clipping = 1.0;
  int64_t processes = 1;
  std::string mixed_precision = "no";  // no, fp16, bf16 or fp8
};

/// Where questions go and answers come from.
struct WizardTerminal {
  std::istream& input;
  std::ostream& output;
  bool echo = false;  // writes the answers too, for input that is not typed
};

/// What an empty line selects.
struct WizardDefaults {
  int64_t gpus = 0;  // per machine
  int64_t tensor_parallel = 1;
  int64_t pipeline_parallel = 1;
  std::string mixed_precision = "no";
};

/// Asks in Accelerate's order and wording. A menu takes the number or the word; an invalid answer is
/// explained and the question repeated. UserError(config) for what Teratron does not have (DeepSpeed, FSDP,
/// TPUs, SageMaker) and for an end of the input before the last answer.
WizardAnswers ask(const WizardTerminal& terminal, const WizardDefaults& defaults);

/// What empty lines would select.
WizardAnswers default_answers(const WizardDefaults& defaults);

/// The YAML file of Accelerate's wizard, its keys in order.
std::string accelerate_yaml(const WizardAnswers& answers);
/// accelerate_yaml() with what each key means beside it.
std::string with_comments(const std::string& yaml);

}  // namespace teratron
