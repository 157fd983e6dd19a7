#include <filesystem>
#include <iostream>

#include <unistd.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/config/config_layout.h"
#include "teratron/cli/config/config_update.h"
#include "teratron/cli/config/config_wizard.h"
#include "teratron/cli/plan_flags.h"
#include "teratron/device/device.h"

namespace teratron {

namespace {

struct ConfigOptions {
  std::string action;  // "", "default" or "update"
  std::string file = "teratron.yaml";
  std::string family = "gpt";
  std::optional<std::string> gpu_memory;
  std::optional<int64_t> gpus;
  bool comments = false;
  Arguments settings = {};

  std::vector<std::string> model_flags() const {
    if (settings.model_preset) return {"--model-preset", *settings.model_preset};
    if (settings.hf_config) return {"--hf-config", *settings.hf_config};
    if (settings.hf) return {"--hf", *settings.hf};
    return {};
  }

  // Keys of the training, which Accelerate's file has not.
  std::string training() const {
    std::string text;
    for (const char* const name : {"model_preset", "hf_config", "hf", "data_path"}) {
      const Field& field = arguments_schema().field(name);
      const Value value = get_value(field, &settings);
      const auto* const words = std::get_if<std::vector<std::string>>(&value);
      if (std::holds_alternative<std::monostate>(value) || (words && words->empty())) continue;
      text += fmt::format("{}: {}{}\n", name, yaml_value(value),
                          comments ? fmt::format("  # {}", field.help) : "");
    }
    return text;
  }
};

std::optional<ConfigOptions> read_config_options(std::span<const std::string> args) {
  ConfigOptions options;
  bool take_defaults = false;
  const CommandLine line = {
      .name = "teratron config",
      .example = "teratron config --model-preset llama3-8b --num-gpus 8 --gpu-memory H100",
      .usage = "[default|update] [FLAGS]",
      .summary =
          "Ask Accelerate's questions about machines, parallelism and precision, and write a configuration "
          "file.",
      .fields = {
          bound_field("action", &options.action,
                      "default: write the defaults without asking; update: add the keys that an older file "
                      "lacks",
                      {.positional = true}),
          bound_field("config_file", &options.file, "File to write; must not exist, except for update"),
          bound_field("default", &take_defaults, "The same as the action default"),
          bound_field("family", &options.family, "What the file is for: gpt, bert, ..."),
          bound_setting("model_preset", &options.settings,
                        "Train this architecture; proposes a layout in which it fits"),
          bound_setting("hf_config", &options.settings,
                        "Likewise of a config.json, or the folder that holds it"),
          bound_setting("hf", &options.settings, "Train this Hugging Face model: its folder"),
          bound_setting("data_path", &options.settings, "Data to write into the file"),
          bound_field("comments", &options.comments, "Write what each key means beside it"),
          bound_field("num_gpus", &options.gpus, "GPUs of a machine; default: those of this one", {.min = 1}),
          bound_field("gpu_memory", &options.gpu_memory,
                      "Memory of a GPU in GiB, or its name; default: that of this machine's")}};
  if (!read_command(line, args)) return std::nullopt;
  if (take_defaults && options.action.empty()) options.action = "default";
  if (!options.action.empty() && options.action != "default" && options.action != "update")
    throw config_error({.what = fmt::format("'{}' is not a subcommand", printable(options.action, 40)),
                        .where = "teratron config",
                        .fix = "Use default or update, or none for the questions"});
  return options;
}

std::optional<GpuMemory> memory_of(const ConfigOptions& options, int64_t gpus) {
  if (options.gpu_memory) return parse_gpu_memory(*options.gpu_memory);
  if (gpus == 0 || gpu_count() == 0) return std::nullopt;
  const Gpu* const gpu = find_gpu(device_name(current_gpu()));
  if (!gpu) return std::nullopt;
  return GpuMemory{std::string(gpu->name), gpu->memory, gpu};
}

WizardDefaults wizard_defaults(const ConfigOptions& options) {
  const Family& family = find_family(options.family);
  WizardDefaults defaults{.gpus = options.gpus ? *options.gpus : gpu_count()};
  const std::vector<std::string> model = options.model_flags();
  if (model.empty()) return defaults;
  if (defaults.gpus == 0 && !options.gpu_memory) return defaults;  // one rank on a CPU
  const std::optional<GpuMemory> memory = memory_of(options, defaults.gpus);
  if (!memory)
    throw config_error({.what = "the memory of a GPU is not known here, so no layout can be proposed",
                        .where = model[0],
                        .fix = "Add --gpu-memory (80GB, or one of " + gpu_names() + ") and --num-gpus"});
  const ProposedLayout layout =
      propose_layout({family, model, std::max<int64_t>(defaults.gpus, 1), memory->gib});
  defaults.gpus = std::max<int64_t>(defaults.gpus, 1);
  defaults.tensor_parallel = layout.tensor_parallel;
  defaults.pipeline_parallel = layout.pipeline_parallel;
  defaults.mixed_precision = "bf16";
  print(
      "{} on GPUs of {:.0f} GiB: tensor parallelism {}, pipeline parallelism {} takes {:.1f} GiB of each "
      "(bf16, micro-batches of 1){}",
      model[1], memory->gib, layout.tensor_parallel, layout.pipeline_parallel, layout.needed_gib,
      layout.fits ? ". Empty lines select this."
                  : ": more than there is. `teratron plan` says what reduces it; more GPUs also do.");
  return defaults;
}

// Trains the model, or a small one that every layout of the file divides, on generated data.
std::string command_to_try(const ConfigOptions& options, const WizardAnswers& answers) {
  const std::string file = shell_word(options.file);
  std::string model;
  if (options.model_flags().empty()) {
    const int64_t heads = 4 * answers.tensor_parallel;
    model = fmt::format(
        " --num-layers {} --hidden-size {} --num-attention-heads {} --seq-length 128 "
        "--max-position-embeddings 128 --vocab-size 1000 --tokenizer-type NullTokenizer",
        2 * answers.pipeline_parallel, 32 * heads, heads);
  }
  const bool one = answers.processes == 1;
  const std::string start =
      one ? fmt::format("teratron pretrain {} --config-file {}", options.family, file)
          : fmt::format("teratron launch --config-file {} -- pretrain {}", file, options.family);
  const char* const data = options.settings.data_path.empty() ? " --mock-data" : "";
  return start + model + data + " --micro-batch-size 1 --train-iters 10 --lr 1e-4 --log-interval 1";
}

void write_new(const ConfigOptions& options) {
  if (std::filesystem::exists(options.file)) {
    throw config_error({.what = "the file exists already",
                        .where = printable(options.file, 1000),
                        .fix = "Use another --config-file, remove it, or `teratron config update` it"});
  }
  const WizardDefaults defaults = wizard_defaults(options);
  const bool typed = isatty(STDIN_FILENO) == 1;
  const WizardAnswers answers = options.action == "default"
                                    ? default_answers(defaults)
                                    : ask({std::cin, std::cout, /*echo=*/!typed}, defaults);
  std::string text = accelerate_yaml(answers);
  if (options.comments) text = with_comments(text);
  write_text(options.file, text + options.training(), ExitCode::config);
  print("Wrote {}. To try it{}{}:", options.file,
        options.settings.data_path.empty() ? " on generated data" : "",
        answers.machines > 1 ? ", on every machine with its --node-rank" : "");
  print("{}", command_to_try(options, answers));
}

void update(const ConfigOptions& options) {
  const std::string text = read_text(options.file, {.kind = ExitCode::config, .max_bytes = size_t{1} << 20});
  const UpdatedConfig updated = update_config(text, options.file);
  if (updated.added.empty()) return print("{} has all keys", options.file);
  write_text(options.file, updated.text, ExitCode::config);
  print("Added to {}: {}", options.file, fmt::format("{}", fmt::join(updated.added, ", ")));
}

}  // namespace

int config_command(std::span<const std::string> args) {
  const std::optional<ConfigOptions> options = read_config_options(args);
  if (!options) return 0;
  if (options->action == "update") {
    update(*options);
  } else {
    write_new(*options);
  }
  return 0;
}

}  // namespace teratron
