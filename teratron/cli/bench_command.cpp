#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/bench/bench.h"
#include "teratron/bench/bench_shapes.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/run_job.h"

namespace teratron {

namespace {

struct Options {
  std::string shape = "gpt2-124m";
  std::string precision = "bf16";
  BenchOptions bench;
  std::optional<std::string> json;
};

}  // namespace

int bench_command(std::span<const std::string> args) {
  Options options;
  CLI::App app("Time the training step of a model shape on mock data, with the real training loop",
               "teratron bench");
  app.add_option("--shape", options.shape, "one of: " + bench_shape_names())->capture_default_str();
  app.add_option("--precision", options.precision, "bf16, fp16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
  app.add_option("--warm-up-seconds", options.bench.warm_up_seconds, "seconds before the first timed step")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--steps", options.bench.steps, "timed steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--profiled-steps", options.bench.profiled_steps,
                 "additional steps under the profiler; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--json", options.json, "JSON file to write the result to");
  app.allow_extras();
  app.footer("All other flags are those of `teratron pretrain` and override those of the shape.");
  if (!parse_command(app, args)) return 0;
  const BenchShape& shape = find_bench_shape(options.shape);
  std::vector<std::string> flags = flags_of(shape);
  if (options.precision != "fp32") flags.push_back("--" + options.precision);
  const std::vector<std::string> extra = app.remaining();
  flags.insert(flags.end(), extra.begin(), extra.end());
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
