#include <algorithm>

#include "teratron/base/config/command_line.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/plan_assumptions.h"
#include "teratron/cli/plan_flags.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/comm/mesh/rank_grid.h"
#include "teratron/device/available_memory.h"
#include "teratron/pipeline/schedule.h"
#include "teratron/plan/rank_memory.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/registry.h"

namespace teratron {

namespace {

struct PlanOptions {
  std::vector<std::string> flags;  // of pretrain
  std::optional<int64_t> world_size;
  std::optional<GpuMemory> gpu;
  bool show_schedule = false;
};

// Nullopt if --help was printed.
std::optional<PlanOptions> read_options(std::span<const std::string> args) {
  PlanOptions options;
  std::optional<std::string> memory;
  const CommandLine line = {
      .name = "teratron plan",
      .example = "teratron plan gpt --model-preset llama3-8b --world-size 8 --gpu-memory H100 --tp 8 --bf16",
      .usage = "[FAMILY] [--world-size N] [--gpu-memory SIZE] [--show-schedule] FLAGS...",
      .summary =
          "Check a command line of `teratron pretrain FAMILY` (default: gpt) without running it; FLAGS are "
          "its flags.",
      .fields =
          {bound_field("world_size", &options.world_size,
                       "Number of ranks; default: those of one model replica", {.min = 1}),
           bound_field(
               "gpu_memory", &memory,
               "Whether each stage fits, and what to change if not: 80, 80GB or 80GiB, or a GPU's name, "
               "for which the time of a step is estimated as well"),
           bound_field("show_schedule", &options.show_schedule, "Draw the schedule of the pipeline stages")},
      .others = OtherArguments::collected,
      .footer = "GPUs with a name: " + gpu_names()};
  std::optional<std::vector<std::string>> flags = read_command(line, args);
  if (!flags) return std::nullopt;
  options.flags = std::move(*flags);
  if (memory) options.gpu = parse_gpu_memory(*memory);
  return options;
}

// Ranks of one replica; 1 on overflow, which validate_arguments() reports.
int64_t replica_size(const Arguments& a) {
  int64_t ranks = 1;
  for (const int64_t size :
       {a.tensor_model_parallel_size, a.pipeline_model_parallel_size, a.context_parallel_size}) {
    if (__builtin_mul_overflow(ranks, size, &ranks)) return 1;
  }
  return ranks;
}

std::string layers_text(const std::vector<StageSpec>& chunks) {
  std::vector<std::string> parts;
  for (const StageSpec& chunk : chunks) {
    std::string text = chunk.embedding ? "embedding " : "";
    if (chunk.layers > 0)
      text += fmt::format("{}-{}", chunk.first_layer, chunk.first_layer + chunk.layers - 1);
    if (chunk.layers == 0 && !chunk.embedding && !chunk.head) text = "nothing";
    if (chunk.head) text += text.empty() ? "loss" : " loss";
    parts.push_back(text);
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

void print_stages(const Arguments& a, const ModelPlan& model, const std::optional<GpuMemory>& gpu) {
  const PipelineLayout layout = pipeline_layout(a, model);
  print(
      "Memory in GiB of a rank of each pipeline stage{}; peak: of PyTorch's allocator, as `teratron bench` "
      "measures it:",
      model.operators ? "" : " without activations, which this model does not describe");
  print("  {:>5}  {:>14}  {:>8}  {:>9}  {:>9}  {:>11}  {:>9}  {:>8}{}  layers", "stage", "parameters",
        "weights", "gradients", "optimizer", "activations", "temporary", "peak",
        gpu ? fmt::format("  {:>8}  {:>4}", "on GPU", "fits") : "");
  for (int64_t stage = 0; stage < layout.stages; ++stage) {
    const RankMemory s = rank_memory(a, model, stage);
    const double on_gpu = s.on_gpu() / gib;
    print("  {:>5}  {:>14}  {:>8.3f}  {:>9.3f}  {:>9.3f}  {:>11.3f}  {:>9.3f}  {:>8.3f}{}  {}", stage,
          s.parameters, s.weights / gib, s.gradients / gib, s.optimizer / gib, s.activations / gib,
          s.temporary / gib, s.peak() / gib,
          gpu ? fmt::format("  {:>8.3f}  {:>4}", on_gpu, on_gpu <= gpu->gib ? "yes" : "no") : "",
          layers_text(layout.chunks_of_stage(stage)));
  }
}

// Micro-batches are summed in the gradients, so that each data-parallel rank has all of them.
void print_whole_gradients(const Arguments& a, const ModelPlan& model) {
  const int64_t replicas = *a.data_parallel_size * a.context_parallel_size;
  if (!a.use_distributed_optimizer || replicas == 1) return;
  double largest = 0.0;
  for (int64_t stage = 0; stage < a.pipeline_model_parallel_size; ++stage)
    largest = std::max(largest, rank_memory(a, model, stage).gradients);
  print(
      "--use-distributed-optimizer divides the optimizer's state by {}. Gradients stay whole on each rank, "
      "up to "
      "{:.3f} GiB, where a part would be {:.3f}: micro-batches are summed in them.",
      replicas, largest / gib, largest / gib / static_cast<double>(replicas));
}

// Fused attention keeps no scores that could be computed again.
void print_recomputation(const Family& family, const Arguments& a, const ModelPlan& model) {
  if (a.recompute_granularity != "selective" || !model.operators) return;
  Arguments without = a;
  without.recompute_granularity.reset();
  const double saved =
      largest_rank_memory(without, family.plan(without, planned_vocabulary(without))).peak() -
      largest_rank_memory(a, model).peak();
  if (saved > 0.001 * gib) return print("Selective recomputation saves {:.3f} GiB.", saved / gib);
  notice(
      "--recompute-activations (selective) has no effect here: fused attention keeps no scores, so there is "
      "nothing to compute again. --recompute-granularity full does");
}

// What offloaded activations need of the host, and whether this one has it.
void print_host_memory(const Arguments& a, const ModelPlan& model) {
  double largest = 0.0;
  for (int64_t stage = 0; stage < a.pipeline_model_parallel_size; ++stage)
    largest = std::max(largest, rank_memory(a, model, stage).host);
  if (largest == 0.0) return;
  const double available = static_cast<double>(available_host_memory()) / gib;
  print("Offloaded activations: up to {:.3f} GiB of pinned host memory for each rank of a host.",
        largest / gib);
  if (largest / gib <= available) return;
  notice(
      "this machine has {:.1f} GiB of host memory available, less than a rank offloads: decrease "
      "--cpu-offloading-num-layers, or train where there is more",
      available);
}

// 1234567 as 1,234,567.
std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = std::ssize(text) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

void print_remedies(const Family& family, const Arguments& a, const GpuMemory& gpu) {
  const std::vector<std::string> remedies = memory_remedies(family, a, gpu.gib * gib);
  if (remedies.empty()) {
    print(
        "No change of layout, precision or recomputation that plan knows makes it fit: use a smaller model, "
        "--lora-rank, or larger GPUs.");
    return;
  }
  print("It fits with one of (peaks):");
  for (const std::string& line : remedies) print("  {}", line);
}

// The answer: whether all stages fit, and what to change if not; the size of the model; a bound of the speed.
void print_verdict(const Family& family, const Arguments& a, const ModelPlan& model,
                   const std::optional<GpuMemory>& gpu) {
  const double needed = largest_rank_memory(a, model).on_gpu() / gib;
  const std::string parts = fmt::format(
      "{:.2f} GiB of its GPU: its peak, about {:.0f} % for unused parts of the allocator's blocks, "
      "and about {:.1f} GiB for the CUDA context",
      needed, 100.0 * allocator_slack, cuda_context / gib);
  const bool fits = gpu && needed <= gpu->gib;
  if (gpu) {
    print("{} ({}). A rank takes up to {}.", fits ? "Fits" : "Does not fit", gpu->name, parts);
  } else {
    print("The settings are valid. A rank takes up to {}. Whether it fits: --gpu-memory SIZE.", parts);
  }
  print("{} parameters in all, on {} rank{}: tensor {} x pipeline {} x context {} x data {}.",
        with_commas(total_parameters(model)), *a.world_size, *a.world_size == 1 ? "" : "s",
        a.tensor_model_parallel_size, a.pipeline_model_parallel_size, a.context_parallel_size,
        *a.data_parallel_size);
  if (gpu && !fits) print_remedies(family, a, *gpu);
  if (gpu && gpu->gpu && model.operators) {
    print(
        "Estimate: a step takes at least {:.1f} ms at the {}'s peak FLOP/s and bandwidth, without "
        "communication and idle time.",
        1e3 * least_step_seconds(a, model, *gpu->gpu), gpu->gpu->name);
  }
  print("");
}

// Micro-batches of a step; without a batch size, enough to show every phase.
int64_t shown_microbatches(const Arguments& a) {
  if (a.num_micro_batches) return *a.num_micro_batches;
  if (a.global_batch_size && a.micro_batch_size) {
    return std::max<int64_t>(*a.global_batch_size / *a.micro_batch_size, 1);
  }
  return 2 * a.pipeline_model_parallel_size;
}

constexpr int64_t largest_drawing = 100'000;  // forwards of all stages

void check_drawable(const ScheduleShape& shape) {
  int64_t forwards = shape.stages;
  const bool large = __builtin_mul_overflow(forwards, shape.chunks, &forwards) ||
                     __builtin_mul_overflow(forwards, shape.microbatches, &forwards) ||
                     forwards > largest_drawing;
  const std::string problem = shape.chunks > 1 ? interleaving_problem(shape) : "";
  if (!large && problem.empty()) return;
  throw config_error({.what = large ? "the schedule is too large to draw" : problem,
                      .where = "--show-schedule",
                      .fix = large ? "Use fewer stages or micro-batches"
                                   : "Set --num-micro-batches to a multiple of the stages"});
}

// Reports what training needs but a plan does not: data and length.
void notice_missing(ParsedArguments given, const Family& family, int64_t world_size) {
  if (family.check) family.check(given.args, given.problems);
  try {
    validate_arguments(given, world_size);
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems()) notice("training also requires: {}", to_string(problem));
  }
}

// Needs the pipeline settings only, not a model.
void print_schedule(const Arguments& a) {
  PipelineLayout layout{.stages = a.pipeline_model_parallel_size,
                        .chunks = a.num_virtual_stages_per_pipeline_rank.value_or(1)};
  if (a.num_layers) layout = pipeline_layout(layout_options(a));
  if (layout.chunks > 1 && layout.stages == 1) {
    throw config_error(
        {.what = "virtual stages without a pipeline", .where = "--vpp", .fix = "Increase --pp"});
  }
  const ScheduleShape shape = schedule_shape(a, layout, shown_microbatches(a));
  check_drawable(shape);
  print("{} stages of {} chunks, {} micro-batches; F forward, B backward, each with its micro-batch{}:",
        shape.stages, shape.chunks, shape.microbatches, shape.chunks > 1 ? ".chunk" : "");
  print("{}", draw(shape));
}

}  // namespace

int plan_command(std::span<const std::string> args, const Registry& registry) {
  const bool is_named = !args.empty() && !args[0].starts_with("-");
  const Family& family = is_named ? find_family(args[0], registry.families) : default_model(registry).family;
  const std::optional<PlanOptions> given_options = read_options(args.subspan(is_named ? 1 : 0));
  if (!given_options) return 0;
  const PlanOptions& options = *given_options;
  const JobModel job{family, registry};
  const ParsedArguments given = given_arguments(options.flags, job);
  if (options.show_schedule && !given.args.num_layers) {
    if (!given.problems.empty()) throw UserError(ExitCode::config, given.problems);
    print_schedule(given.args);
    return 0;
  }
  ParsedArguments parsed = given_arguments(with_assumptions(options.flags, given, job), job);
  const Arguments& a = parsed.args;
  const int64_t world_size = options.world_size.value_or(replica_size(a));
  if (family.check) family.check(parsed.args, parsed.problems);
  validate_arguments(parsed, world_size, {.needs_data = false});
  const ModelPlan model = family.plan(a, planned_vocabulary(a));
  print_verdict(family, a, model, options.gpu);
  print_line(to_string(RankGrid(mesh_options(a), world_size)));
  print_stages(a, model, options.gpu);
  print_whole_gradients(a, model);
  print_recomputation(family, a, model);
  print_host_memory(a, model);
  if (options.show_schedule) print_schedule(a);
  print_line(explain(parsed));
  // Where plan assumes a vocabulary, the given tokenizer's files do have an effect on the training.
  const bool assumes = a.tokenizer_type == "NullTokenizer" && given.args.tokenizer_type != a.tokenizer_type;
  for (const std::string& line : parsed.notices) {
    if (!assumes || line.find("has no effect without --tokenizer-type") == line.npos) notice_line(line);
  }
  notice_missing(given, family, world_size);
  return 0;
}

}  // namespace teratron
