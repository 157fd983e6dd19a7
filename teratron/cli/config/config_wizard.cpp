#include "teratron/cli/config/config_wizard.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iostream>
#include <numeric>
#include <vector>

#include "teratron/base/config/config.h"
#include "teratron/base/error.h"
#include "teratron/base/strings.h"
#include "teratron/base/text_lines.h"

namespace teratron {

namespace {

// An answer, or why it is none.
template <typename T>
struct Answer {
  std::optional<T> value;
  std::string problem = {};
};

template <typename T>
using Reader = std::function<Answer<T>(const std::string&)>;

// One of an enumeration: an item and why it cannot be chosen, if so.
struct Choice {
  std::string name;
  std::string refusal = {};
};

UserError refused(const std::string& question, const std::string& why, const std::string& fix) {
  return config_error({.what = why, .where = question, .fix = fix});
}

template <typename T>
Answer<T> read_number(const std::string& text, T least, T most) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && value >= least && value <= most) return {value};
  return {{}, fmt::format("'{}' is not a number from {} to {}", printable(text, 40), least, most)};
}

constexpr int64_t most_ranks = 1 << 16;

class Wizard {
 public:
  explicit Wizard(const WizardTerminal& terminal) : terminal_(terminal) {}

  void say(const std::string& line) { terminal_.output << line << '\n'; }

  template <typename T>
  T ask(const std::string& question, const std::optional<T>& fallback, const Reader<T>& read) {
    while (true) {
      const std::string text = answer_to(question);
      if (text.empty() && fallback) return *fallback;
      Answer<T> answer = text.empty() ? Answer<T>{{}, "this question has no default"} : read(text);
      if (answer.value) return *answer.value;
      say(fmt::format("Not a valid answer: {}.", answer.problem));
    }
  }

  bool yes_or_no(const std::string& question, bool fallback) {
    const std::string choices = fallback ? "YES/no" : "yes/NO";
    return ask<bool>(fmt::format("{} [{}]: ", question, choices), fallback,
                     [](const std::string& text) -> Answer<bool> {
                       const std::string word = to_lower(text);
                       for (const char* yes : {"yes", "y", "true", "1"}) {
                         if (word == yes) return {true};
                       }
                       for (const char* no : {"no", "n", "false", "0"}) {
                         if (word == no) return {false};
                       }
                       return {{}, fmt::format("'{}' is neither yes nor no", printable(text, 40))};
                     });
  }

  int64_t whole(const std::string& question, int64_t fallback, int64_t least, int64_t most) {
    return ask<int64_t>(fmt::format("{} [{}]: ", question, fallback), fallback,
                        [&](const std::string& text) { return read_number<int64_t>(text, least, most); });
  }

  // A number or a word of the list; which has a refusal ends the wizard.
  size_t menu(const std::string& question, const std::vector<Choice>& choices, size_t fallback) {
    const size_t chosen = ask<size_t>(question, fallback, [&](const std::string& text) -> Answer<size_t> {
      for (size_t i = 0; i < choices.size(); ++i) {
        if (text == std::to_string(i) || to_lower(text) == to_lower(choices[i].name)) return {i};
      }
      std::vector<std::string> all;
      for (size_t i = 0; i < choices.size(); ++i) all.push_back(fmt::format("{} ({})", i, choices[i].name));
      return {{}, fmt::format("'{}' is none of {}", printable(text, 40), fmt::join(all, ", "))};
    });
    if (choices[chosen].refusal.empty()) return chosen;
    throw refused(question.substr(0, question.find('?') + 1), choices[chosen].refusal,
                  fmt::format("Answer {} ({})", fallback, choices[fallback].name));
  }

 private:
  std::string answer_to(const std::string& question) {
    terminal_.output << question << std::flush;
    std::string text;
    if (!next_line(terminal_.input, text, "standard input", 4096)) {
      terminal_.output << std::endl;
      throw config_error({.what = "the answers end here; nothing was written",
                          .where = question.substr(0, question.find_first_of("?[") + 1),
                          .fix = "Answer every question, an empty line for its default, or use `teratron "
                                 "config default`"});
    }
    const size_t first = text.find_first_not_of(" \t\r"), last = text.find_last_not_of(" \t\r");
    text = first == text.npos ? "" : text.substr(first, last - first + 1);
    if (terminal_.echo) say(text);
    return text;
  }

  const WizardTerminal& terminal_;
};

MachineKind default_machine(const WizardDefaults& defaults) {
  return defaults.gpus > 0 ? MachineKind::multi_gpu : MachineKind::multi_cpu;
}

void ask_machine(Wizard& wizard, const WizardDefaults& defaults, WizardAnswers& answers) {
  wizard.menu(
      "In which compute environment are you running? ([0] This machine, [1] AWS (Amazon SageMaker)): ",
      {{"This machine"},
       {"AWS (Amazon SageMaker)",
        "jobs are not submitted to SageMaker: in a container of it, start teratron launch as on any "
        "machine"}},
      0);
  const size_t fallback = static_cast<size_t>(default_machine(defaults));
  wizard.say(fmt::format("(This machine has {}; an empty line is [{}].)",
                         defaults.gpus > 0 ? fmt::format("{} GPU(s)", defaults.gpus) : "no GPU", fallback));
  answers.machine = static_cast<MachineKind>(
      wizard.menu("Which type of machine are you using? ([0] No distributed training, [1] multi-CPU, [2] "
                  "multi-GPU, [3] TPU): ",
                  {{"No distributed training"},
                   {"multi-CPU"},
                   {"multi-GPU"},
                   {"TPU", "there are kernels for NVIDIA GPUs and CPUs, not for TPUs"}},
                  fallback));
  answers.use_cpu = answers.machine == MachineKind::multi_cpu;
  if (answers.machine == MachineKind::single_process && defaults.gpus > 0)
    answers.use_cpu =
        wizard.yes_or_no("Do you want to run your training on CPU only (even if a GPU is available)?", false);
}

void ask_machines(Wizard& wizard, WizardAnswers& answers) {
  answers.machines =
      wizard.whole("How many different machines will you use (use more than 1 for multi-node training)?", 1,
                   1, most_ranks);
  if (answers.machines == 1) return;
  answers.machine_rank = wizard.whole("What is the rank of this machine?", 0, 0, answers.machines - 1);
  answers.address = wizard.ask<std::string>(
      "What is the IP address of the machine that will host the main process? ", std::nullopt,
      [](const std::string& text) -> Answer<std::string> {
        const auto allowed = [](unsigned char c) {
          return std::isalnum(c) || c == '.' || c == '-' || c == ':';
        };
        if (std::ranges::all_of(text, allowed)) return {text};
        return {{}, fmt::format("'{}' is neither an address nor a host name", printable(text, 40))};
      });
  answers.port =
      wizard.whole("What is the port you will use to communicate with the main process?", 29500, 1, 65535);
}

void refuse_other_engines(Wizard& wizard) {
  if (wizard.yes_or_no("Do you want to use DeepSpeed?", false))
    throw refused("Do you want to use DeepSpeed?",
                  "DeepSpeed is another engine, whose settings have no meaning here",
                  "Answer no, then yes to Megatron-LM: its distributed optimizer is what ZeRO stage 1 does");
  if (wizard.yes_or_no("Do you want to use FullyShardedDataParallel?", false))
    throw refused("Do you want to use FullyShardedDataParallel?",
                  "parameters are sharded by tensor and pipeline parallelism here, not by FSDP",
                  "Answer no, then yes to Megatron-LM, whose distributed optimizer shards optimizer states");
}

void ask_megatron(Wizard& wizard, const WizardDefaults& defaults, WizardAnswers& answers) {
  answers.tensor_parallel =
      wizard.whole("What is the Tensor Parallelism degree/size?", defaults.tensor_parallel, 1, most_ranks);
  if (answers.tensor_parallel > 1)
    answers.sequence_parallel = wizard.yes_or_no("Do you want to enable Sequence Parallelism?", true);
  answers.pipeline_parallel = wizard.whole("What is the Pipeline Parallelism degree/size?",
                                           defaults.pipeline_parallel, 1, most_ranks);
  if (answers.pipeline_parallel > 1)
    answers.micro_batches = wizard.whole("What is the number of micro-batches?", 1, 1, 1 << 20);
  answers.recompute_activations =
      wizard.yes_or_no("Do you want to enable selective activation recomputation?", true);
  answers.distributed_optimizer = wizard.yes_or_no(
      "Do you want to use distributed optimizer which shards optimizer state and gradients across data "
      "parallel ranks?",
      true);
  answers.gradient_clipping = wizard.ask<double>(
      "What is the gradient clipping value based on global L2 Norm (0 to disable)? [1.0]: ", 1.0,
      [](const std::string& text) { return read_number<double>(text, 0.0, 1e30); });
}

// Ranks come in whole replicas, equally many on every machine.
int64_t default_processes(const WizardAnswers& answers, int64_t gpus) {
  const int64_t replica = answers.tensor_parallel * answers.pipeline_parallel;
  const int64_t step = std::lcm(replica, answers.machines);
  const int64_t present = answers.use_cpu ? answers.machines : gpus * answers.machines;
  return std::max(step, present / step * step);
}

void ask_processes(Wizard& wizard, const WizardDefaults& defaults, WizardAnswers& answers) {
  const int64_t replica = answers.tensor_parallel * answers.pipeline_parallel;
  const int64_t fallback = default_processes(answers, defaults.gpus);
  answers.processes = wizard.ask<int64_t>(
      fmt::format("How many {} should be used for distributed training? [{}]: ",
                  answers.use_cpu ? "CPU(s)" : "GPU(s)", fallback),
      fallback, [&](const std::string& text) -> Answer<int64_t> {
        const Answer<int64_t> answer = read_number<int64_t>(text, 1, most_ranks);
        if (!answer.value) return answer;
        if (*answer.value % replica != 0)
          return {{},
                  fmt::format("{} is not a multiple of {} = {} (tensor) x {} (pipeline parallelism)",
                              *answer.value, replica, answers.tensor_parallel, answers.pipeline_parallel)};
        if (*answer.value % answers.machines != 0)
          return {{}, fmt::format("{} cannot be divided among {} machines", *answer.value, answers.machines)};
        return answer;
      });
}

std::string upper_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// The default is in capitals.
std::string ask_precision(Wizard& wizard, const std::string& fallback) {
  const std::vector<Choice> all = {{"no"}, {"fp16"}, {"bf16"}, {"fp8"}};
  std::vector<std::string> shown;
  size_t selected = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == fallback) selected = i;
    shown.push_back(all[i].name == fallback ? upper_case(fallback) : all[i].name);
  }
  const size_t chosen = wizard.menu(
      fmt::format("Do you wish to use FP16 or BF16 (mixed precision)? [{}]: ", fmt::join(shown, "/")), all,
      selected);
  return all[chosen].name;
}

const char* text_of(bool value) {
  return value ? "true" : "false";
}

const char* distributed_type(const WizardAnswers& answers) {
  if (answers.machine == MachineKind::single_process) return "'NO'";
  if (answers.megatron) return "MEGATRON_LM";
  return answers.machine == MachineKind::multi_gpu ? "MULTI_GPU" : "MULTI_CPU";
}

std::string megatron_section(const WizardAnswers& answers) {
  std::string text = "megatron_lm_config:\n";
  const auto add = [&text](const char* key, const std::string& value) {
    text += fmt::format("  megatron_lm_{}: {}\n", key, value);
  };
  add("gradient_clipping", python_str(answers.gradient_clipping));
  if (answers.micro_batches) add("num_micro_batches", std::to_string(*answers.micro_batches));
  add("pp_degree", std::to_string(answers.pipeline_parallel));
  add("recompute_activations", text_of(answers.recompute_activations));
  if (answers.sequence_parallel) add("sequence_parallelism", text_of(*answers.sequence_parallel));
  add("tp_degree", std::to_string(answers.tensor_parallel));
  add("use_distributed_optimizer", text_of(answers.distributed_optimizer));
  return text;
}

}  // namespace

WizardAnswers ask(const WizardTerminal& terminal, const WizardDefaults& defaults) {
  Wizard wizard(terminal);
  WizardAnswers answers;
  ask_machine(wizard, defaults, answers);
  if (answers.machine == MachineKind::single_process) {
    answers.megatron = false;
  } else {
    ask_machines(wizard, answers);
    if (!answers.use_cpu) refuse_other_engines(wizard);
    answers.megatron = wizard.yes_or_no("Do you want to use Megatron-LM ?", false);
    if (answers.megatron) ask_megatron(wizard, defaults, answers);
    ask_processes(wizard, defaults, answers);
  }
  answers.mixed_precision = ask_precision(wizard, defaults.mixed_precision);
  return answers;
}

WizardAnswers default_answers(const WizardDefaults& defaults) {
  WizardAnswers answers{.machine = default_machine(defaults),
                        .tensor_parallel = defaults.tensor_parallel,
                        .pipeline_parallel = defaults.pipeline_parallel};
  answers.use_cpu = answers.machine == MachineKind::multi_cpu;
  if (answers.tensor_parallel > 1) answers.sequence_parallel = true;
  if (answers.pipeline_parallel > 1) answers.micro_batches = 1;
  answers.processes = default_processes(answers, defaults.gpus);
  answers.mixed_precision = defaults.mixed_precision;
  return answers;
}

std::string accelerate_yaml(const WizardAnswers& answers) {
  const bool quoted = answers.mixed_precision == "no";
  return fmt::format(
      "compute_environment: LOCAL_MACHINE\n"
      "deepspeed_config: {{}}\n"
      "distributed_type: {}\n"
      "downcast_bf16: 'no'\n"
      "fsdp_config: {{}}\n"
      "machine_rank: {}\n"
      "main_process_ip: {}\n"
      "main_process_port: {}\n"
      "main_training_function: main\n"
      "{}"
      "mixed_precision: {}\n"
      "num_machines: {}\n"
      "num_processes: {}\n"
      "rdzv_backend: static\n"
      "same_network: true\n"
      "use_cpu: {}\n",
      distributed_type(answers), answers.machine_rank,
      answers.address ? fmt::format("'{}'", *answers.address) : "null",
      answers.port ? std::to_string(*answers.port) : "null",
      answers.megatron ? megatron_section(answers) : "megatron_lm_config: {}\n",
      quoted ? "'no'" : answers.mixed_precision, answers.machines, answers.processes,
      text_of(answers.use_cpu));
}

namespace {

constexpr std::pair<std::string_view, std::string_view> meanings[] = {
    {"compute_environment", "this machine, or those of the job"},
    {"deepspeed_config", "DeepSpeed is not used"},
    {"distributed_type", "MEGATRON_LM: ranks with the layout of megatron_lm_config"},
    {"downcast_bf16", "of TPUs; no effect"},
    {"fsdp_config", "FSDP is not used"},
    {"machine_rank", "of this machine, from 0; each has its own file, or --node-rank"},
    {"main_process_ip", "address of machine 0"},
    {"main_process_port", "of machine 0; null: one that is free"},
    {"main_training_function", "of notebooks; no effect"},
    {"megatron_lm_config", "layout and optimizer"},
    {"megatron_lm_gradient_clipping", "largest norm of the gradient; 0: no limit"},
    {"megatron_lm_num_micro_batches", "micro-batches of a step, which keep pipeline stages busy"},
    {"megatron_lm_pp_degree", "pipeline stages: ranks that have some of the layers each"},
    {"megatron_lm_recompute_activations", "attention scores are computed again in backward: less memory"},
    {"megatron_lm_sequence_parallelism",
     "norms and dropout are divided over tensor-parallel ranks: less memory"},
    {"megatron_lm_tp_degree", "ranks that divide each layer"},
    {"megatron_lm_use_distributed_optimizer", "data-parallel ranks divide the optimizer's state"},
    {"mixed_precision", "no (fp32), fp16, bf16 or fp8"},
    {"num_machines", "machines of the job"},
    {"num_processes", "ranks of all machines together: tensor x pipeline x data parallelism"},
    {"rdzv_backend", "of torchrun; no effect"},
    {"same_network", "of torchrun; no effect"},
    {"use_cpu", "true: ranks compute on CPUs"}};

}  // namespace

std::string with_comments(const std::string& yaml) {
  std::string text;
  for (const std::string& line : split(yaml, '\n')) {
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    const std::string key = line.substr(begin, line.find(':') - begin);
    const auto* const found =
        std::ranges::find(meanings, key, &std::pair<std::string_view, std::string_view>::first);
    text += line;
    if (found != std::end(meanings)) text += fmt::format("  # {}", found->second);
    text += line.empty() ? "" : "\n";
  }
  return text;
}

}  // namespace teratron
