// The assignment of layers to pipeline stages.
//
// Layers are assigned in the order of the virtual stages: chunk 0 of every stage, then chunk 1, and so on. By
// default all virtual stages have the same number of layers. Uneven splits are those of Megatron-LM:
//
//   first, last stage   layers of the first and of the last stage; the rest is divided evenly over the others
//   embedding, loss     the embedding or the loss counts as a layer of its stage
//   split               an encoder's layers on the first stages, a decoder's on the others
//   text                "Ett|(tt|)*3,tL": E embedding, t layer, L loss, | ends a virtual stage, x*n and
//                       (xyz)*n repeat, commas are ignored. A virtual stage may be empty
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/pipeline/stage_spec.h"

namespace teratron {

struct PipelineLayout {
  int64_t stages = 0;
  int64_t chunks = 0;                     // per stage
  std::vector<StageSpec> virtual_stages;  // [chunk * stages + stage]

  std::vector<StageSpec> chunks_of_stage(int64_t stage) const;
};

/// The first `layers` layers are divided evenly over the first `stages` stages, the rest over the others.
struct PipelineSplit {
  int64_t layers = 0;
  int64_t stages = 0;
};

struct PipelineLayoutOptions {
  int64_t layers = 0;
  int64_t stages = 1;
  std::optional<int64_t> chunks = {};            // per stage
  std::optional<int64_t> layers_per_chunk = {};  // alternative to `chunks`
  std::optional<int64_t> first_stage_layers = {};
  std::optional<int64_t> last_stage_layers = {};
  std::optional<PipelineSplit> split = {};
  bool embedding_counts = false;
  bool loss_counts = false;
  std::optional<std::string> text = {};
};

/// UserError(config) with all problems; `where` is Megatron-LM's name of the setting.
PipelineLayout pipeline_layout(const PipelineLayoutOptions& options);

}  // namespace teratron
