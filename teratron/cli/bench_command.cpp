#include <algorithm>
#include <optional>

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/bench/bench.h"
#include "teratron/bench/bench_shapes.h"
#include "teratron/bench/generate_bench.h"
#include "teratron/bench/serve_bench.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/train/registry.h"

namespace teratron {

namespace {

struct Options {
  std::string shape = "gpt2-124m";
  std::string precision = "bf16";
  BenchOptions bench;
  Arguments settings;  // json
};

void reject_folders(const std::vector<std::string>& flags) {
  for (const std::string& flag : flags) {
    std::string name = flag.substr(0, flag.find('='));
    std::ranges::replace(name, '_', '-');
    for (const char* const folder : {"--hf", "--hf-config", "--load", "--pretrained-checkpoint", "--lora"}) {
      if (name != folder) continue;
      throw config_error(
          {.what = "random weights of a shape are timed, not a folder's",
           .where = flag,
           .fix = "Choose a --shape, and give its sizes, such as --num-layers and --hidden-size, as flags"});
    }
  }
}

std::vector<std::string> shape_flags(const BenchShape& shape, const std::string& precision,
                                     const std::vector<std::string>& extra) {
  reject_folders(extra);
  std::vector<std::string> flags = flags_of(shape);
  const bool has_data = std::ranges::any_of(extra, [](const std::string& flag) {
    return flag == "--data-path" || flag.starts_with("--data-path=");
  });
  if (has_data) std::erase(flags, "--mock-data");
  if (precision != "fp32") flags.push_back("--" + precision);
  flags.insert(flags.end(), extra.begin(), extra.end());
  return flags;
}

// Whether text can be generated with it.
bool generates(const BenchShape& shape) {
  return find_family(shape.family).generates;
}

const BenchShape& find_generating_shape(const std::string& name) {
  const BenchShape& shape = find_bench_shape(name);
  if (generates(shape)) return shape;
  throw config_error({.what = fmt::format("{} does not generate text", name),
                      .where = "--shape",
                      .fix = "Use one of: " + bench_shape_names(generates)});
}

Field json_field(Options& options) {
  return bound_setting("json", &options.settings, "JSON file to write the result to");
}

// A command that times a shape: `own` fields, and those of the shape. `shapes`: their names.
CommandLine command_line(const char* name, const char* summary, Options& options,
                         const std::vector<Field>& own, const std::string& shapes) {
  return {.name = name,
          .example = fmt::format("{} --shape gpt2-124m --precision bf16", name),
          .usage = "[--shape NAME] [FLAGS]",
          .summary = summary,
          .fields = joined({bound_field("shape", &options.shape, "Model shape, listed below"),
                            bound_field("precision", &options.precision, "Dtype of weights and activations",
                                        {.choices = "bf16|fp16|fp32"})},
                           own),
          .others = OtherArguments::collected,
          .footer = "Shapes: " + shapes +
                    "\nAll other flags are those of `teratron pretrain` and override those of the shape."};
}

void write_json(const Options& options, const std::string& json) {
  if (options.settings.json) write_text(*options.settings.json, json + "\n", ExitCode::config);
}

int bench_generate_command(std::span<const std::string> args) {
  Options options;
  GenerateBenchOptions bench;
  bool eager = false;
  const CommandLine line = command_line(
      "teratron bench generate", "Time the generation of text with random weights of a model shape.", options,
      {json_field(options), bound_field("batch", &bench.batch, "Sequences at once", {.min = 1}),
       bound_field("prompt_tokens", &bench.prompt, "Tokens of each prompt", {.min = 1}),
       bound_field("new_tokens", &bench.new_tokens, "Tokens of each answer", {.min = 2, .max = 1 << 20}),
       bound_field("eager", &eager, "Without CUDA graphs"),
       bound_field("profiled_steps", &bench.profiled_steps,
                   "Additional steps of decoding under the profiler, with a table of their kernels; 0: none",
                   {.min = 0})},
      bench_shape_names(generates));
  const std::optional<std::vector<std::string>> flags = read_command(line, args);
  if (!flags) return 0;
  const BenchShape& shape = find_generating_shape(options.shape);
  const Registry registry;
  const ParsedArguments parsed =
      pretrain_arguments(shape_flags(shape, options.precision, *flags),
                         read_launch_env(process_environment).size, {find_family(shape.family), registry});
  bench.name = fmt::format("{} {}", options.shape, options.precision);
  bench.family = shape.family;
  bench.graphs = !eager;
  if (parsed.args.num_threads) at::set_num_threads(static_cast<int>(*parsed.args.num_threads));
  run_model_parallel(parsed, [&](const Mesh& mesh) {
    const GenerateBenchResult result = bench_generate(parsed.args, bench, mesh);
    if (mesh.world().rank != 0) return;
    print_line(to_string(result));
    write_json(options, to_json(result));
  });
  return 0;
}

int bench_serve_command(std::span<const std::string> args) {
  Options options;
  ServeBenchOptions bench;
  int64_t port = bench.port;
  const CommandLine line = command_line(
      "teratron bench serve",
      "Serve random weights of a model shape, for load generators (bench/serve_load.py).", options,
      {bound_field("batch", &bench.batch, "Sequences at once", {.min = 1}),
       bound_field("longest", &bench.longest, "Tokens of the longest sequence", {.min = 1}),
       bound_field("listen_port", &port, "Port to listen on; 0: any that is free", {.min = 0, .max = 65535})},
      bench_shape_names(generates));
  const std::optional<std::vector<std::string>> flags = read_command(line, args);
  if (!flags) return 0;
  bench.port = static_cast<int>(port);
  const BenchShape& shape = find_generating_shape(options.shape);
  const Registry registry;
  const ParsedArguments parsed = pretrain_arguments(shape_flags(shape, options.precision, *flags), 1,
                                                    {find_family(shape.family), registry});
  bench.name = options.shape;
  bench.family = shape.family;
  if (parsed.args.num_threads) at::set_num_threads(static_cast<int>(*parsed.args.num_threads));
  const StopSignals signals("finishing the answers in progress; once more ends immediately\n");
  bench_serve(parsed.args, bench, [&] { return signals.received() != 0; });
  return 0;
}

}  // namespace

int bench_command(std::span<const std::string> args) {
  if (!args.empty() && args.front() == "generate") return bench_generate_command(args.subspan(1));
  if (!args.empty() && args.front() == "serve") return bench_serve_command(args.subspan(1));
  Options options;
  const CommandLine line = command_line(
      "teratron bench",
      "Time the training step of a model shape on mock data, or on --data-path, with the real training loop. "
      "`bench generate` and `bench serve` time generation.",
      options,
      {json_field(options),
       bound_field("warm_up_seconds", &options.bench.warm_up_seconds, "Seconds before the first timed step",
                   {.min = 0, .max = 86400}),
       bound_field("steps", &options.bench.steps, "Timed steps", {.min = 1}),
       bound_field("profiled_steps", &options.bench.profiled_steps,
                   "Additional steps under the profiler; 0: none", {.min = 0})},
      bench_shape_names());
  const std::optional<std::vector<std::string>> given = read_command(line, args);
  if (!given) return 0;
  const BenchShape& shape = find_bench_shape(options.shape);
  const std::vector<std::string>& extra = *given;
  const std::vector<std::string> flags = shape_flags(shape, options.precision, extra);
  options.bench.name = fmt::format("{}{}{}", options.shape, extra.empty() ? "" : " ", fmt::join(extra, " "));
  const Registry registry;
  options.bench.family = shape.family;
  const JobModel model{find_family(shape.family), registry};
  return run_job(flags, model, [&](const ParsedArguments& parsed, World& world, const StopSignals& signals) {
    const std::optional<BenchResult> result = bench(parsed.args, world, signals, options.bench);
    if (!result) return ExitCode::ok;
    print_line(to_string(*result));
    write_json(options, to_json(*result));
    return ExitCode::ok;
  });
}

}  // namespace teratron
