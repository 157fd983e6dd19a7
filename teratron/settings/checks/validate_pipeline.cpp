// Checks of how layers lie on pipeline stages and of the schedules that are possible then.
#include "teratron/settings/checks/validate.h"
#include "teratron/settings/pipeline_settings.h"

namespace teratron {

namespace {

void note_without_pipeline(Validation& v) {
  for (const std::string_view name : {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
                                      "account_for_embedding_in_pipeline_split",
                                      "account_for_loss_in_pipeline_split", "overlap_p2p_comm"}) {
    if (v.chosen(name)) {
      v.note(fmt::format("{} has no effect at pipeline_model_parallel_size 1", v.where(name)));
    }
  }
}

/// Every global batch size on the way up makes a schedule of its own.
void check_interleaved_ramp(Validation& v, const PipelineLayout& layout) {
  const Arguments& a = v.args;
  const bool sound = a.micro_batch_size && a.data_parallel_size && v.problems.empty();
  if (a.rampup_batch_size.size() != 3 || !sound) return;
  const int64_t start = a.rampup_batch_size[0], increment = a.rampup_batch_size[1];
  const int64_t target = *a.global_batch_size, at_once = target / *a.num_micro_batches;
  for (int64_t size = start; size < target; size += increment) {
    const std::string problem = interleaving_problem(schedule_shape(a, layout, size / at_once));
    if (problem.empty()) continue;
    const int64_t group = a.microbatch_group_size_per_vp_stage.value_or(layout.stages);
    return v.reject(
        "rampup_batch_size",
        fmt::format("the interleaved schedule is impossible at a global batch of {}: {}", size, problem),
        fmt::format("Use a start and an increment that are multiples of {} samples, {} micro-batches",
                    group * at_once, group));
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
    v.reject(
        "overlap_p2p_comm",
        "the interleaved schedule without overlapped communication needs pipeline_model_parallel_size > 2",
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

}  // namespace

void check_pipeline(Validation& v) {
  const Arguments& a = v.args;
  if (!a.num_layers) return;
  if (a.pipeline_model_parallel_size == 1) note_without_pipeline(v);
  try {
    check_interleaving(v, pipeline_layout(layout_options(a)));
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems()) v.reject(problem.where, problem.what, problem.fix);
  }
}

}  // namespace teratron
