#include "teratron/cli/config/config_layout.h"

#include <algorithm>
#include <utility>

#include "teratron/cli/training_arguments.h"
#include "teratron/plan/rank_memory.h"
#include "teratron/train/registry.h"

namespace teratron {

namespace {

// Powers of two within a machine, by number of GPUs, then the less of the pipeline, which idles at its ends.
std::vector<std::pair<int64_t, int64_t>> candidates(int64_t gpus) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (int64_t ranks = 1; ranks <= gpus; ranks *= 2) {
    if (gpus % ranks != 0) continue;
    for (int64_t pipeline = 1; pipeline <= ranks; pipeline *= 2) all.emplace_back(ranks / pipeline, pipeline);
  }
  return all;
}

std::vector<std::string> layout_flags(const LayoutRequest& request, int64_t tensor, int64_t pipeline) {
  std::vector<std::string> flags = request.model;
  const auto add = [&flags](std::string flag, int64_t value) {
    flags.insert(flags.end(), {std::move(flag), std::to_string(value)});
  };
  flags.insert(flags.end(),
               {"--mock-data", "--bf16", "--use-distributed-optimizer", "--recompute-activations"});
  if (tensor > 1) flags.emplace_back("--sequence-parallel");
  add("--tensor-model-parallel-size", tensor);
  add("--pipeline-model-parallel-size", pipeline);
  add("--micro-batch-size", 1);
  add("--num-micro-batches", 2 * pipeline);
  return flags;
}

// nullopt for a layout that the model cannot have, such as 8 shards of 2 heads.
std::optional<double> needed_gib(const LayoutRequest& request, ParsedArguments parsed) {
  try {
    validate_arguments(parsed, request.gpus, {.needs_data = false});
  } catch (const UserError&) {
    return std::nullopt;
  }
  const ModelPlan model = request.family.plan(parsed.args, planned_vocabulary(parsed.args));
  return largest_rank_memory(parsed.args, model).on_gpu() / gib;
}

}  // namespace

ProposedLayout propose_layout(const LayoutRequest& request) {
  const Registry registry;
  std::optional<ProposedLayout> least;
  for (const auto& [tensor, pipeline] : candidates(request.gpus)) {
    const std::vector<std::string> flags = layout_flags(request, tensor, pipeline);
    ParsedArguments parsed = given_arguments(flags, {request.family, registry});
    if (!parsed.problems.empty()) throw UserError(ExitCode::config, parsed.problems);
    const std::optional<double> needed = needed_gib(request, std::move(parsed));
    if (!needed) continue;
    const ProposedLayout layout{tensor, pipeline, *needed, *needed <= request.gpu_gib};
    if (layout.fits) return layout;
    if (!least || layout.needed_gib < least->needed_gib) least = layout;
  }
  return least.value_or(ProposedLayout{});
}

}  // namespace teratron
