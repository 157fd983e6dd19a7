#include <algorithm>

#include "teratron/base/config/help_view.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/generate/generate_lines.h"
#include "teratron/cli/generate/generate_terminal.h"
#include "teratron/cli/generate/generate_texts.h"
#include "teratron/cli/generate/prompt_images.h"
#include "teratron/cli/inference_program.h"
#include "teratron/cli/run_job.h"
#include "teratron/hf/architecture.h"
#include "teratron/settings/help_rows.h"

namespace teratron {

namespace {

HelpPage help(const Program& program) {
  const Field folder =
      reworded("run_dir", "Folder of a run, to whose metrics and report the texts are added");
  return {
      .command = "teratron generate",
      .full = arguments_help({"teratron generate --load DIR [--prompt TEXT ...] [FLAGS]", program.names},
                             std::span(&folder, 1)) +
              "\nModel and tokenizer come from the checkpoint.\nWithout --prompt or --sample-input-file, "
              "prompts are read from standard input.\n",
      .main_flags = {"--load",
                     "--hf",
                     "--lora",
                     "--prompt",
                     "--sample-input-file",
                     "--sample-output-file",
                     "--input",
                     "--output",
                     "--max-new-tokens",
                     "--temperature",
                     "--top-k",
                     "--top-p",
                     "--greedy",
                     "--seed",
                     "--num-beams",
                     "--num-return-sequences",
                     "--stop",
                     "--tensor-model-parallel-size",
                     "--pipeline-model-parallel-size",
                     "--bf16",
                     "--device",
                     "--inference-max-requests",
                     "--run-dir",
                     "--config-file"},
      .example = "teratron generate --hf DIR --prompt \"Once upon a time\" --max-new-tokens 64 --top-p 0.9"};
}

// Rows that a user limits are not raised for another flag.
void check_rows(const Arguments& args) {
  const int64_t needed = std::max(args.num_beams, args.num_return_sequences);
  if (needed <= args.inference_max_requests.value_or(needed)) return;
  throw config_error({.what = fmt::format("{} sequences at once, but --inference-max-requests is {}", needed,
                                          *args.inference_max_requests),
                      .where = args.num_beams == needed ? "--num-beams" : "--num-return-sequences",
                      .fix = fmt::format("Set --inference-max-requests {}, or leave it out", needed)});
}

void check_modes(const Arguments& args) {
  if (args.input.has_value() != args.output.has_value()) {
    throw config_error({.what = "--input and --output belong together",
                        .where = args.input ? "--output" : "--input",
                        .fix = "Set both"});
  }
  if (args.input && (!args.prompt.empty() || args.sample_input_file || args.num_samples > 0)) {
    throw config_error({.what = "the requests come from --input, but prompts are given",
                        .where = "--input",
                        .fix = "Use one of them"});
  }
}

// Whether rank 0 has a terminal in which to ask for prompts; all ranks must know.
bool all_know(bool has_terminal, HostGroup& ranks) {
  return ranks.broadcast_bytes(has_terminal ? "1" : "0") == "1";
}

ExitCode run_rank(const ParsedArguments& parsed, const Registry& registry, const Mesh& mesh) {
  const Arguments& args = parsed.args;
  const bool asks = !args.input && args.prompt.empty() && !args.sample_input_file && args.num_samples == 0;
  const std::unique_ptr<JobTerminal> terminal =
      asks && mesh.rank() == 0 ? JobTerminal::open(mesh.world_size()) : nullptr;
  const bool interactive = asks && all_know(terminal != nullptr, *mesh.world().communicator);
  GenerateJob job = load_generate_job(parsed, mesh, !args.input, registry.families);
  if (args.input) {
    read_prompt_images(job);
    return generate_lines(job);
  }
  if (interactive) {
    generate_in_terminal(job, terminal.get());
  } else {
    generate_texts(job);
  }
  return ExitCode::ok;
}

}  // namespace

int generate_command(std::span<const std::string> args, const Registry& registry) {
  const Program program = inference_program("generate");
  if (asks_for_help(args)) {
    print_line(help_view(help(program), args));
    return 0;
  }
  const ParsedArguments parsed = parse_arguments(program, args, {.architecture = architecture_settings});
  check_modes(parsed.args);
  check_rows(parsed.args);
  start_inference(parsed);
  ExitCode code = ExitCode::ok;
  run_model_parallel(parsed, [&](const Mesh& mesh) {
    const ExitCode own = run_rank(parsed, registry, mesh);
    if (mesh.rank() == 0) code = own;
  });
  return static_cast<int>(code);
}

}  // namespace teratron
