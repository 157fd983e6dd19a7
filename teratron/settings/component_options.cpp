#include "teratron/settings/component_options.h"

namespace teratron {

MeshOptions mesh_options(const Arguments& args) {
  return {.tp = args.tensor_model_parallel_size,
          .pp = args.pipeline_model_parallel_size,
          .cp = args.context_parallel_size,
          .ep = args.expert_model_parallel_size,
          .etp = args.expert_tensor_parallel_size.value_or(0),
          .order = args.use_tp_pp_dp_mapping ? "tp-cp-ep-pp-dp" : MeshOptions().order};
}

std::vector<BatchStep> batch_steps(const Arguments& args) {
  return parse_step_batch_size_schedule(args.step_batch_size_schedule.value(), args.seq_length);
}

BatchSchedule batch_schedule(const Arguments& args) {
  const BatchSplit layout = {.micro_batch_size = args.micro_batch_size.value(),
                             .data_parallel_size = args.data_parallel_size.value()};
  if (args.step_batch_size_schedule) return BatchSchedule::steps(batch_steps(args), layout);
  const int64_t final_size = args.global_batch_size.value();
  const std::vector<int64_t>& ramp = args.rampup_batch_size;
  if (ramp.empty()) return BatchSchedule::constant(final_size, layout);
  return BatchSchedule::ramp({.start = ramp.at(0), .increment = ramp.at(1), .samples = ramp.at(2)},
                             final_size, layout);
}

PipelineLayoutOptions layout_options(const Arguments& args) {
  const bool pipeline = args.pipeline_model_parallel_size > 1;
  const int64_t first = args.num_layers.value_or(0);
  std::optional<PipelineSplit> split;
  if (args.pipeline_model_parallel_split_rank)
    split = PipelineSplit{.layers = first, .stages = *args.pipeline_model_parallel_split_rank};
  return {.layers = first + args.decoder_num_layers.value_or(0),
          .stages = args.pipeline_model_parallel_size,
          .chunks = args.num_virtual_stages_per_pipeline_rank,
          .layers_per_chunk = args.num_layers_per_virtual_pipeline_stage,
          .first_stage_layers = pipeline ? args.decoder_first_pipeline_num_layers : std::nullopt,
          .last_stage_layers = pipeline ? args.decoder_last_pipeline_num_layers : std::nullopt,
          .split = split,
          .embedding_counts = pipeline && args.account_for_embedding_in_pipeline_split,
          .loss_counts = pipeline && args.account_for_loss_in_pipeline_split,
          .text = args.pipeline_model_parallel_layout};
}

int64_t tokens_per_sample(const Arguments& args) {
  return args.seq_length.value() + args.decoder_seq_length.value_or(0);
}

ScheduleShape schedule_shape(const Arguments& args, const PipelineLayout& layout, int64_t microbatches) {
  return {.stages = layout.stages,
          .chunks = layout.chunks,
          .microbatches = microbatches,
          .microbatch_group = args.microbatch_group_size_per_vp_stage.value_or(0),
          .early_receives = args.overlap_p2p_comm};
}

TokenizerOptions tokenizer_options(const Arguments& args) {
  const std::string type = args.tokenizer_type.value_or("");
  return {.type = type == "SFTTokenizer" ? "HuggingFaceTokenizer" : type,
          .vocab_file = args.vocab_file.value_or(""),
          .merge_file = args.merge_file.value_or(""),
          .tokenizer_model = args.tokenizer_model.value_or(""),
          .vocab_size = args.vocab_size.value_or(0),
          .vocab_extra_ids = args.vocab_extra_ids,
          .tiktoken_pattern = args.tiktoken_pattern,
          .tiktoken_num_special_tokens = args.tiktoken_num_special_tokens,
          .special_tokens = args.tokenizer_special_tokens};
}

std::filesystem::path run_directory(const Arguments& args) {
  return args.run_dir.value_or(args.save.value_or(""));
}

}  // namespace teratron
