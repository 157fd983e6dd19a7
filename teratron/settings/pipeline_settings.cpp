#include "teratron/settings/pipeline_settings.h"

namespace teratron {

LayoutOptions layout_options(const Arguments& args) {
  const bool pipeline = args.pipeline_model_parallel_size > 1;
  return {.layers = args.num_layers.value(),
          .stages = args.pipeline_model_parallel_size,
          .chunks = args.num_virtual_stages_per_pipeline_rank,
          .layers_per_chunk = args.num_layers_per_virtual_pipeline_stage,
          .first_stage_layers = pipeline ? args.decoder_first_pipeline_num_layers : std::nullopt,
          .last_stage_layers = pipeline ? args.decoder_last_pipeline_num_layers : std::nullopt,
          .embedding_counts = pipeline && args.account_for_embedding_in_pipeline_split,
          .loss_counts = pipeline && args.account_for_loss_in_pipeline_split,
          .text = args.pipeline_model_parallel_layout};
}

ScheduleShape schedule_shape(const Arguments& args, const PipelineLayout& layout, int64_t microbatches) {
  return {.stages = layout.stages,
          .chunks = layout.chunks,
          .microbatches = microbatches,
          .group = args.microbatch_group_size_per_vp_stage.value_or(0),
          .early_receives = args.overlap_p2p_comm};
}

}  // namespace teratron
