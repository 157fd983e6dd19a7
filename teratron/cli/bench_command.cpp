#include "teratron/cli/bench_command.h"

#include <optional>

#include <CLI/CLI.hpp>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/cli/command_line.h"
#include "teratron/cli/job.h"
#include "teratron/train/bench.h"
#include "teratron/train/bench_shapes.h"

namespace teratron {

namespace {

struct Options {
  std::string shape = "gpt2-124m";
  std::string precision = "bf16";
  BenchOptions bench;
  std::optional<std::string> json;
  std::vector<std::string> flags;
};

std::string shapes_help() {
  std::string names;
  for (const BenchShape& shape : bench_shapes())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", shape.name);
  return names;
}

}  // namespace

int bench_command(std::span<const std::string> args) {
  Options options;
  CLI::App app("Time the training step of a shape, with mock data through the real loop", "teratron bench");
  app.add_option("--shape", options.shape, "one of: " + shapes_help());
  app.add_option("--precision", options.precision, "bf16, fp16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  app.add_option("--warm-up-seconds", options.bench.warm_up_seconds, "seconds before the first timed step")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--steps", options.bench.steps, "timed steps")->check(CLI::PositiveNumber);
  app.add_option("--profiled-steps", options.bench.profiled_steps,
                 "steps under the profiler afterwards; 0: none")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--json", options.json, "write the result there, as JSON");
  app.allow_extras();
  app.footer("All other flags are those of `teratron pretrain gpt`; they overrule the shape's.");
  if (!parse_command(app, args)) return 0;
  options.flags = app.remaining();

  std::vector<std::string> flags = shape_flags(options.shape);
  if (options.precision != "fp32") flags.push_back("--" + options.precision);
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  ParsedArguments parsed = parse_arguments("pretrain gpt", flags);
  const Launch launch = read_launch(process_environment);
  finish(parsed, launch.size);
  options.bench.name = options.shape;
  run_world(launch, world_options(parsed.args, launch), [&](World& world) {
    const std::optional<BenchResult> result = bench(parsed, world, options.bench);
    if (!result) return;
    print_line(to_string(*result));
    if (options.json) write_text(*options.json, to_json(*result) + "\n", ExitCode::config);
  });
  return 0;
}

}  // namespace teratron
