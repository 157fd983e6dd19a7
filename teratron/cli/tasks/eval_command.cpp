#include <filesystem>

#include "teratron/base/config/help_view.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/inference_program.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/tasks/task_job.h"
#include "teratron/hf/architecture.h"
#include "teratron/settings/help_rows.h"
#include "teratron/tasks/eval/eval_scores.h"
#include "teratron/telemetry/metrics_logger.h"
#include "teratron/telemetry/report.h"

namespace teratron {

namespace {

constexpr int64_t usual_new_tokens = 256;  // as lm-evaluation-harness

// With the defaults of use_eval_defaults().
std::string eval_help(const Program& program) {
  const std::vector<Field> fields = {
      reworded("max_new_tokens",
               "Maximum number of generated tokens; default 256, or half the model's positions"),
      reworded("out_seq_length",
               "Maximum length in tokens with the prompt; without --max-new-tokens only if it is given"),
      reworded("run_dir", "Folder of a run, to whose metrics and report the figures are added"),
      reworded("temperature", "Sampling temperature; if it is given, --top-k is 0 by default")};
  const std::vector<ArgsDefault> defaults = {{"top_k", "1"}};
  return arguments_help(
             {"teratron eval --load DIR --data FILE.jsonl [--json OUT] [--predictions FILE] [FLAGS]",
              program.names},
             fields, defaults) +
         "\nLines of --data:\n"
         "  {\"context\": ..., \"continuation\": ...}\n"
         "  {\"context\": ..., \"choices\": [...], \"answer\": number from 0, or text}\n"
         "  {\"prompt\": ..., \"answer\": ..., \"match\": exact | prefix | regex | number}\n"
         "Model and tokenizer come from the checkpoint. Answers are greedy unless a flag or a line "
         "samples.\n";
}

// Answers are those of greedy decoding, of a usual length, unless the user chose otherwise.
void use_eval_defaults(const ParsedArguments& parsed, GenerateJob& job) {
  GenerationRequest& request = job.reader.defaults;
  const auto given = [&](const char* name) { return parsed.sources.contains(name); };
  if (!given("temperature") && !given("top_k") && !given("top_p")) request.sampling.top_k = 1;
  if (given("max_new_tokens") || given("out_seq_length")) return;
  job.reader.total_length = 0;
  request.max_new_tokens =
      std::min(usual_new_tokens, std::max<int64_t>(1, job.loaded.model.max_positions / 2));
}

void report_figures(const EvalData& data, const nlohmann::ordered_json& figures) {
  for (const std::string& field : data.ignored) notice("the field {} has no effect", printable(field, 60));
  if (data.truncated > 0) {
    warn("{} of {} texts are longer than the model's positions and lost their beginning", data.truncated,
         data.requests.size());
  }
  const nlohmann::ordered_json& errors = figures.at("stderr");
  for (const auto& [name, value] : figures.items()) {
    if (value.is_object()) continue;
    if (errors.contains(name)) {
      print("{:<17} {:.6g} +- {:.2g}", name, value.get<double>(), errors[name].get<double>());
    } else {
      print("{:<17} {}", name, value.dump());
    }
  }
}

std::string name_of_path(const std::optional<std::string>& path) {
  const std::filesystem::path given = std::filesystem::path(path.value_or("")).lexically_normal();
  return (given.has_filename() ? given : given.parent_path()).filename().string();
}

// To the metrics of the run, and into its report.
void add_to_run(const Arguments& args, const nlohmann::ordered_json& figures) {
  ScoreMetrics score{.model = name_of_path(args.hf ? args.hf : args.load), .data = name_of_path(args.data)};
  for (const auto& [name, value] : figures.items()) {
    if (value.is_number()) score.figures.emplace_back(name, value.get<double>());
  }
  const std::filesystem::path folder = *args.run_dir, metrics = folder / "metrics.jsonl";
  make_directories(folder, ExitCode::config);
  jsonl_writer(metrics)->write({.wall_time = wall_clock(), .data = std::move(score)});
  write_report(metrics, folder / "report.html");
}

void evaluate_lines(const ParsedArguments& parsed, const Registry& registry, const Mesh& mesh) {
  const Arguments& args = parsed.args;
  GenerateJob job = load_generate_job(parsed, mesh, true, registry.families);
  use_eval_defaults(parsed, job);
  check_vocabulary(job);
  const LanguageModel& model = job.loaded.model;
  const EvalData data =
      read_eval_data(*args.data, {.requests = job.reader,
                                  .limits = {.vocabulary = model.vocabulary,
                                             .max_positions = model.max_positions,
                                             .max_rows = args.inference_max_requests.value_or(16),
                                             .has_tokenizer = true,
                                             .has_source = model.source.has_value()}});
  const RequestList requests{.size = static_cast<int64_t>(data.requests.size()),
                             .get = [&](int64_t i) { return data.requests.at(i); }};
  const ReplicatedModel replicated = replicated_model(job);
  const auto show = [&](int64_t answered) {
    if (has_status_line() && mesh.rank() == 0)
      status_line(fmt::format("{}/{} requests", answered * replicated.ranks().replicas.size, requests.size));
  };
  const std::vector<RequestOutcome> outcomes = answer_requests(replicated, requests, show);
  if (mesh.rank() != 0) return;
  status_line("");
  std::vector<SampleScore> scores;
  std::vector<nlohmann::ordered_json> lines;
  for (const EvalSample& sample : data.samples) {
    scores.push_back(score_of(sample, outcomes));
    lines.push_back(scores.back().line);
  }
  const nlohmann::ordered_json figures = figures_of(scores, static_cast<uint64_t>(args.seed));
  write_lines(args.predictions, lines);
  write_figures(args.json, figures);
  report_figures(data, figures);
  if (args.run_dir) add_to_run(args, figures);
}

}  // namespace

int eval_command(std::span<const std::string> args, const Registry& registry) {
  const Program program = inference_program("eval");
  if (asks_for_help(args)) {
    print_line(help_view({.command = "teratron eval",
                          .full = eval_help(program),
                          .main_flags = {"--load",
                                         "--hf",
                                         "--lora",
                                         "--data",
                                         "--json",
                                         "--predictions",
                                         "--run-dir",
                                         "--max-new-tokens",
                                         "--temperature",
                                         "--top-k",
                                         "--top-p",
                                         "--seed",
                                         "--tensor-model-parallel-size",
                                         "--pipeline-model-parallel-size",
                                         "--inference-max-requests",
                                         "--tokenizer-type",
                                         "--tokenizer-model",
                                         "--bf16",
                                         "--device",
                                         "--config-file"},
                          .example = "teratron eval --hf DIR --data questions.jsonl --json scores.json"},
                         args));
    return 0;
  }
  const ParsedArguments parsed = parse_arguments(program, args, {.architecture = architecture_settings});
  start_inference(parsed);
  if (!parsed.args.data) {
    throw config_error({.what = "no data are given", .where = "--data", .fix = "Name a file of JSON lines"});
  }
  check_output(parsed.args.json, "--json");
  check_output(parsed.args.predictions, "--predictions");
  run_replicas(parsed, [&](const Mesh& mesh) { evaluate_lines(parsed, registry, mesh); });
  return 0;
}

}  // namespace teratron
