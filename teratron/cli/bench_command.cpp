#include <algorithm>
#include <optional>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/bench/bench.h"
#include "teratron/bench/bench_shapes.h"
#include "teratron/bench/generate_bench.h"
#include "teratron/bench/serve_bench.h"
#include "teratron/cli/at_least.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/train/training_arguments.h"
#include "teratron/train/loop/pretrain.h"

namespace teratron {

namespace {

struct Options {
  std::string shape = "gpt2-124m";
  std::string precision = "bf16";
  BenchOptions bench;
  std::optional<std::string> json;
};

std::vector<std::string> shape_flags(const BenchShape& shape, const std::string& precision,
                                     const std::vector<std::string>& extra) {
  for (const std::string& flag : extra) {
    if (flag == "--hf" || flag.starts_with("--hf=") || flag.starts_with("--hf-config"))
      throw config_error({.what = "random weights of a shape are timed, not a folder's",
                          .where = flag,
                          .fix =
                              "Choose a --shape, and give its sizes, such as --num-layers and --hidden-size, "
                              "as flags"});
  }
  std::vector<std::string> flags = flags_of(shape);
  const bool has_data = std::ranges::any_of(extra, [](const std::string& flag) {
    return flag == "--data-path" || flag.starts_with("--data-path=");
  });
  if (has_data) std::erase(flags, "--mock-data");
  if (precision != "fp32") flags.push_back("--" + precision);
  flags.insert(flags.end(), extra.begin(), extra.end());
  return flags;
}

void add_shape(CLI::App& app, Options& options) {
  app.add_option("--shape", options.shape, "one of: " + bench_shape_names())->capture_default_str();
  app.add_option("--precision", options.precision, "bf16, fp16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
  app.add_option("--json", options.json, "JSON file to write the result to");
  app.allow_extras();
  app.footer("All other flags are those of `teratron pretrain` and override those of the shape.");
}

int bench_generate_command(std::span<const std::string> args) {
  Options options;
  GenerateBenchOptions bench;
  bool eager = false;
  CLI::App app("Time the generation of text with random weights of a model shape", "teratron bench generate");
  add_shape(app, options);
  app.add_option("--batch", bench.batch, "sequences at once")->check(at_least(1))->capture_default_str();
  app.add_option("--prompt-tokens", bench.prompt, "tokens of each prompt")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--new-tokens", bench.new_tokens, "tokens of each answer")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_flag("--eager", eager, "without CUDA graphs");
  app.add_option("--profiled-steps", bench.profiled_steps,
                 "additional steps of decoding under the profiler, with a table of their kernels; 0: none")
      ->check(at_least(0))
      ->capture_default_str();
  if (!parse_command(app, args)) return 0;
  const BenchShape& shape = find_bench_shape(options.shape);
  const Registry registry;
  const ParsedArguments parsed =
      pretrain_arguments(shape_flags(shape, options.precision, app.remaining()),
                         read_launch_env(process_environment).size, {find_family(shape.family), registry});
  bench.name = fmt::format("{} {}", options.shape, options.precision);
  bench.family = shape.family;
  bench.graphs = !eager;
  if (parsed.args.num_threads) at::set_num_threads(static_cast<int>(*parsed.args.num_threads));
  run_model_parallel(parsed, [&](const Mesh& mesh) {
    const GenerateBenchResult result = bench_generate(parsed.args, bench, mesh);
    if (mesh.world().rank != 0) return;
    print_line(to_string(result));
    if (options.json) write_text(*options.json, to_json(result) + "\n", ExitCode::config);
  });
  return 0;
}

int bench_serve_command(std::span<const std::string> args) {
  Options options;
  ServeBenchOptions bench;
  CLI::App app("Serve random weights of a model shape, for load generators (bench/serve_load.py)",
               "teratron bench serve");
  add_shape(app, options);
  app.add_option("--batch", bench.batch, "sequences at once")->check(at_least(1))->capture_default_str();
  app.add_option("--longest", bench.longest, "tokens of the longest sequence")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--listen-port", bench.port, "0: any that is free")->capture_default_str();
  if (!parse_command(app, args)) return 0;
  const BenchShape& shape = find_bench_shape(options.shape);
  const Registry registry;
  const ParsedArguments parsed = pretrain_arguments(shape_flags(shape, options.precision, app.remaining()), 1,
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
  CLI::App app(
      "Time the training step of a model shape on mock data, or on --data-path, with the real training loop",
      "teratron bench");
  add_shape(app, options);
  app.add_option("--warm-up-seconds", options.bench.warm_up_seconds, "seconds before the first timed step")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  app.add_option("--steps", options.bench.steps, "timed steps")->check(at_least(1))->capture_default_str();
  app.add_option("--profiled-steps", options.bench.profiled_steps,
                 "additional steps under the profiler; 0: none")
      ->check(at_least(0))
      ->capture_default_str();
  if (!parse_command(app, args)) return 0;
  const BenchShape& shape = find_bench_shape(options.shape);
  const std::vector<std::string> extra = app.remaining();
  const std::vector<std::string> flags = shape_flags(shape, options.precision, extra);
  options.bench.name = fmt::format("{}{}{}", options.shape, extra.empty() ? "" : " ", fmt::join(extra, " "));
  const Registry registry;
  options.bench.family = shape.family;
  const JobModel model{find_family(shape.family), registry};
  return run_job(flags, model, [&](const ParsedArguments& parsed, World& world, const StopSignals& signals) {
    const std::optional<BenchResult> result = bench(parsed.args, world, signals, options.bench);
    if (!result) return ExitCode::ok;
    print_line(to_string(*result));
    if (options.json) write_text(*options.json, to_json(*result) + "\n", ExitCode::config);
    return ExitCode::ok;
  });
}

}  // namespace teratron
