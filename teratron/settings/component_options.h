// Settings converted to the options of other components. Independent of torch, so that settings can be
// checked and planned without it.
#pragma once

#include <filesystem>

#include "teratron/comm/mesh/rank_grid.h"
#include "teratron/optim/batch_schedule.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/pipeline/schedule.h"
#include "teratron/settings/arguments.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

MeshOptions mesh_options(const Arguments& args);
/// The steps of --step-batch-size-schedule. UserError(config) if it is not one.
std::vector<BatchStep> batch_steps(const Arguments& args);
/// micro_batch_size, global_batch_size and data_parallel_size must be set.
BatchSchedule batch_schedule(const Arguments& args);
/// num_layers, the encoder's in an encoder and decoder, must be set.
PipelineLayoutOptions layout_options(const Arguments& args);
/// Sum over encoder and decoder, if the model has both. seq_length must be set.
int64_t tokens_per_sample(const Arguments& args);
/// Schedule of a step with this many micro-batches.
ScheduleShape schedule_shape(const Arguments& args, const PipelineLayout& layout, int64_t microbatches);
TokenizerOptions tokenizer_options(const Arguments& args);
/// Where the files of a run go: --run-dir, else --save; empty: nowhere.
std::filesystem::path run_directory(const Arguments& args);

}  // namespace teratron
