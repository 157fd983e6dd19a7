// Layout of the ranks, and the pipeline schedule.
#include <algorithm>

#include "teratron/settings/checks/formula.h"
#include "teratron/settings/checks/validate.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace {

std::string there_are(int64_t ranks) {
  return ranks == 1 ? "is 1" : fmt::format("are {}", ranks);
}

std::string count_text(std::optional<int64_t> ranks) {
  return ranks ? fmt::to_string(*ranks) : "too many";
}

// Expert layers have their own view of the ranks: expert tensor x expert x pipeline x data.
void check_expert_ranks(Validation& v, int64_t world_size) {
  const Arguments& a = v.args;
  if (!a.num_experts) return;
  const int64_t ep = a.expert_model_parallel_size, pp = a.pipeline_model_parallel_size;
  const int64_t etp = a.expert_tensor_parallel_size.value_or(a.tensor_model_parallel_size);
  const std::optional<int64_t> ranks = product(product(etp, ep), pp);
  if (ranks && world_size % *ranks == 0) return;
  v.reject(
      "expert_model_parallel_size",
      fmt::format("expert tensor {} x expert {} x pipeline {} needs a multiple of {} ranks, and there {}",
                  etp, ep, pp, count_text(ranks), there_are(world_size)),
      fmt::format("Choose sizes whose product is one of {}", divisors_text(world_size)));
}

/// False, with a problem, if there is no interleaved schedule for this global batch size of `setting`.
bool check_interleaved_batch(Validation& v, const PipelineLayout& layout, std::string_view setting,
                             int64_t size) {
  const Arguments& a = v.args;
  const int64_t samples = *a.micro_batch_size * *a.data_parallel_size;
  const std::string problem = interleaving_problem(schedule_shape(a, layout, size / samples));
  if (problem.empty()) return true;
  const int64_t group = a.microbatch_group_size_per_vp_stage.value_or(layout.stages);
  v.reject(
      setting,
      fmt::format("the interleaved schedule is impossible at a global batch size of {}: {}", size, problem),
      fmt::format("Use {} that are multiples of {} samples, {} micro-batches",
                  setting == "rampup_batch_size" ? "a start and an increment" : "sizes", group * samples,
                  group));
  return false;
}

/// Every global batch size of a ramp-up or step schedule has its own schedule.
void check_interleaved_ramp(Validation& v, const PipelineLayout& layout) {
  const Arguments& a = v.args;
  if (!a.micro_batch_size || !a.data_parallel_size || !v.problems.empty()) return;
  if (a.rampup_batch_size.size() == 3) {
    const int64_t start = a.rampup_batch_size[0], increment = a.rampup_batch_size[1];
    for (int64_t size = start; size < *a.global_batch_size; size += increment) {
      if (!check_interleaved_batch(v, layout, "rampup_batch_size", size)) return;
    }
  }
  if (!a.step_batch_size_schedule) return;
  for (const BatchStep& step : batch_steps(a)) {
    if (!check_interleaved_batch(v, layout, "step_batch_size_schedule", step.global_batch_size)) return;
  }
}

void check_interleaving(Validation& v, const PipelineLayout& layout) {
  const Arguments& a = v.args;
  constexpr std::string_view group = "microbatch_group_size_per_vp_stage";
  if (layout.chunks == 1) {
    if (v.chosen(group))
      v.note(fmt::format("{} has no effect without virtual pipeline stages", flag_of(group)));
    return;
  }
  if (!a.overlap_p2p_comm && layout.stages == 2) {
    v.reject("overlap_p2p_comm",
             "the interleaved schedule without overlap_p2p_comm needs pipeline_model_parallel_size > 2",
             "Leave --no-overlap-p2p-communication out");
  }
  if (!a.num_micro_batches) return;
  check_interleaved_ramp(v, layout);
  const std::string problem = interleaving_problem(schedule_shape(a, layout, *a.num_micro_batches));
  if (problem.empty()) return;
  v.reject(a.microbatch_group_size_per_vp_stage ? group : "global_batch_size",
           "the interleaved schedule is impossible: " + problem,
           fmt::format("Use a multiple of {} micro-batches (global_batch_size / micro_batch_size / "
                       "data_parallel_size = {})",
                       a.microbatch_group_size_per_vp_stage.value_or(layout.stages), *a.num_micro_batches));
}

/// Layers of the largest stack on a virtual stage: T5's encoder and decoder are stacks.
int64_t largest_stack(const PipelineLayout& layout, int64_t first_tower) {
  int64_t largest = 0;
  for (const StageSpec& stage : layout.virtual_stages) {
    const int64_t in_first = std::clamp<int64_t>(first_tower - stage.first_layer, 0, stage.layers);
    largest = std::max({largest, in_first, stage.layers - in_first});
  }
  return largest;
}

void check_offloading(Validation& v, const PipelineLayout& layout) {
  const int64_t offloaded = v.args.cpu_offloading_num_layers;
  const int64_t largest = largest_stack(layout, *v.args.num_layers);
  if (offloaded <= largest) return;
  v.reject("cpu_offloading_num_layers",
           fmt::format("cpu_offloading_num_layers = {}, but a {} has at most {} layers", offloaded,
                       layout.chunks > 1   ? "virtual pipeline stage"
                       : layout.stages > 1 ? "pipeline stage"
                                           : "stack of the model",
                       largest),
           fmt::format("Use at most {}", largest));
}

}  // namespace

void check_parallel(Validation& v, int64_t world_size) {
  Arguments& a = v.args;
  check_expert_ranks(v, world_size);
  a.world_size = world_size;
  const int64_t tp = a.tensor_model_parallel_size, pp = a.pipeline_model_parallel_size;
  const std::optional<int64_t> ranks = product(product(tp, pp), a.context_parallel_size);
  if (!ranks || world_size < 1 || world_size % *ranks != 0) {
    v.reject("tensor_model_parallel_size",
             fmt::format("tensor {} x pipeline {} x context {} needs a multiple of {} ranks, and there {}",
                         tp, pp, a.context_parallel_size, count_text(ranks), there_are(world_size)),
             ranks
                 ? fmt::format(
                       "Start {} with `teratron launch --nproc-per-node {} -- ...` on one machine, or {}",
                       multiples_text(world_size, *ranks), (world_size / *ranks + 1) * *ranks,
                       world_size == 1 ? "leave these sizes at 1"
                                       : "choose sizes whose product is one of " + divisors_text(world_size))
                 : "Choose smaller sizes");
    return;
  }
  v.derive("world_size", a.world_size, world_size);
  v.derive("data_parallel_size", a.data_parallel_size, world_size / *ranks);
}

void check_pipeline(Validation& v) {
  if (!v.args.num_layers) return;
  try {
    const PipelineLayout layout = pipeline_layout(layout_options(v.args));
    check_offloading(v, layout);
    check_interleaving(v, layout);
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems()) v.reject(problem.where, problem.what, problem.fix);
  }
}

}  // namespace teratron
