#include "teratron/base/config/help_view.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/inference_program.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/tasks/task_job.h"
#include "teratron/hf/architecture.h"
#include "teratron/settings/help_rows.h"
#include "teratron/tasks/finetune/finetune_run.h"
#include "teratron/tasks/zeroshot/zeroshot.h"

namespace teratron {

namespace {

std::string tasks_help(std::span<const Field> fields) {
  return arguments_help(
             {"teratron tasks --task WIKITEXT103|LAMBADA --valid-data FILE... --load DIR [FLAGS]\n"
              "       teratron tasks --task RACE|MNLI|QQP --train-data ... --valid-data ... --epochs N\n"
              "                --pretrained-checkpoint DIR [FLAGS]",
              inference_program("tasks").names},
             fields) +
         "\nFinetuning also takes the flags of `teratron pretrain bert`. Architecture and tokenizer come\n"
         "from the checkpoint where they are not given.\n"
         "On several ranks (teratron launch --nproc-per-node N -- tasks ...) those beyond one model's are\n"
         "replicas, which share the texts.\n"
         "--epochs N is --num-train-epochs N, --epochs 0 is --skip-train, --keep-last is\n"
         "--keep-last-batch.\n";
}

// Flags of Megatron-LM's tasks whose names mean something else here, or are those of its first version.
std::vector<std::string> task_flags(std::span<const std::string> args) {
  std::vector<std::string> flags;
  for (const std::string& arg : args) {
    const bool joined = arg.starts_with("--batch-size=") || arg.starts_with("--epochs=");
    const size_t equals = joined ? arg.find('=') : std::string::npos;
    flags.push_back(arg.substr(0, equals));
    if (joined) flags.push_back(arg.substr(equals + 1));
  }
  for (size_t i = 0; i < flags.size(); ++i) {
    const bool has_value = i + 1 < flags.size() && !flags[i + 1].starts_with("--");
    if (flags[i] == "--batch-size") flags[i] = "--micro-batch-size";
    if (flags[i] == "--keep-last" && !has_value) flags[i] = "--keep-last-batch";
    if (flags[i] != "--epochs" || !has_value) continue;
    flags[i] = "--num-train-epochs";
    if (flags[i + 1] != "0") continue;
    flags[i] = "--skip-train";
    flags.erase(flags.begin() + static_cast<int64_t>(i) + 1);
  }
  return flags;
}

ZeroShotOptions zeroshot_options(const Arguments& args, const GenerateJob& job) {
  return {.lambada = args.task == "LAMBADA",
          .seq_length = job.args().seq_length.value_or(job.loaded.model.max_positions),
          .overlap = args.overlapping_eval,
          .strict = args.strict_lambada,
          .log_interval = args.log_interval,
          .micro_batch_size = args.micro_batch_size.value_or(1)};
}

void print_box(const std::string& line) {
  const std::string dashes(line.size() + 1, '-');
  print_line(dashes);
  print_line(line);
  print_line(dashes);
}

void evaluate_texts(const ParsedArguments& parsed, const Mesh& mesh) {
  const Arguments& args = parsed.args;
  const bool first = mesh.rank() == 0;
  if (first) print("building GPT model ...");
  const GenerateJob job = load_generate_job(parsed, mesh, true);
  check_vocabulary(job);
  if (job.loaded.model.source) {
    throw config_error(
        {.what = fmt::format("{} is a task of a GPT, but the model has an encoder", *args.task),
         .where = "--load",
         .fix = "Use a GPT"});
  }
  const ZeroShotOptions options = zeroshot_options(args, job);
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  ZeroShotSums total;
  for (const std::string& path : args.valid_data) {
    if (first && options.lambada) print("> building lambada dataset from {} ...", path);
    const ZeroShotTask task(options, *job.tokenizer, path, job.loaded.model.max_positions);
    if (first) print_line(task.description());
    const ZeroShotSums sums = run_zeroshot(replicated_model(job), task, options);
    total.add(sums);
    if (first) print_box(zeroshot_line(options, sums));
    files.push_back({{"file", path}});
    files.back().update(zeroshot_json(options, sums));
  }
  if (!first) return;
  nlohmann::ordered_json figures = zeroshot_json(options, total);
  figures["task"] = *args.task;
  figures["files"] = files;
  write_figures(args.json, figures);
  print("done :-)");
}

int finetune(const FinetuneTask& task, const std::vector<std::string>& flags) {
  const Family family = task_family(task);
  const Registry registry;
  return run_job(flags, {family, registry},
                 [&](const ParsedArguments& parsed, World& world, const StopSignals& signals) {
                   return finetune_task(task, parsed, world, signals);
                 });
}

void check_zeroshot(const Arguments& args) {
  std::vector<Problem> problems;
  if (!args.task) {
    problems.push_back({"no task is given", "--task", "Use WIKITEXT103, LAMBADA, RACE, MNLI or QQP"});
  }
  if (args.valid_data.empty())
    problems.push_back({"no data are given", "--valid-data", "Name one file or more"});
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

}  // namespace

int tasks_command(std::span<const std::string> args) {
  const std::vector<std::string> flags = task_flags(args);
  // Scripts of Megatron-LM pass flags of training to all tasks.
  const Program program = inference_program("tasks", {"inference", "training"});
  const std::vector<Field> fields = {reworded("task", "Task to evaluate a model on, or to finetune it for",
                                              "WIKITEXT103|LAMBADA|RACE|MNLI|QQP")};
  if (asks_for_help(args)) {
    print_line(help_view({.command = "teratron tasks",
                          .full = tasks_help(fields),
                          .main_flags = {"--task",
                                         "--valid-data",
                                         "--train-data",
                                         "--load",
                                         "--hf",
                                         "--pretrained-checkpoint",
                                         "--seq-length",
                                         "--micro-batch-size",
                                         "--overlapping-eval",
                                         "--strict-lambada",
                                         "--keep-last-batch",
                                         "--tensor-model-parallel-size",
                                         "--pipeline-model-parallel-size",
                                         "--tokenizer-type",
                                         "--tokenizer-model",
                                         "--vocab-file",
                                         "--merge-file",
                                         "--save",
                                         "--log-interval",
                                         "--json",
                                         "--predictions",
                                         "--bf16",
                                         "--device",
                                         "--config-file"},
                          .example = "teratron tasks --task LAMBADA --valid-data lambada_test.jsonl --load "
                                     "checkpoints --strict-lambada"},
                         args));
    return 0;
  }
  const ParsedArguments parsed = parse_arguments(
      program, flags,
      {.defer_problems = true, .extra_fields = fields, .architecture = architecture_settings});
  check_output(parsed.args.json, "--json");
  check_output(parsed.args.predictions, "--predictions");
  if (const FinetuneTask* const task = find_finetune_task(parsed.args.task.value_or("")))
    return finetune(*task, flags);
  if (!parsed.problems.empty()) throw UserError(ExitCode::config, parsed.problems);
  start_inference(parsed);
  check_zeroshot(parsed.args);
  run_replicas(parsed, [&](const Mesh& mesh) { evaluate_texts(parsed, mesh); });
  return 0;
}

}  // namespace teratron
