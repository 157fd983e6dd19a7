// Which layers of the model lie on which pipeline stage.
//
// The model's layers are dealt out in the order of the virtual stages: chunk 0 of every stage, then chunk 1, and so
// on. By default all virtual stages get the same number; Megatron-LM's ways to deal unevenly are honoured:
//
//   first, last stage   layers of the first and of the last stage; the rest is shared equally by those between
//   embedding, loss     the embedding or the loss counts as a layer of the stage that has it
//   text                "Ett|(tt|)*3,tL": E embedding, t layer, L loss, | ends a virtual stage, x*n and (xyz)*n
//                       repeat, commas mean nothing. A virtual stage may be empty
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
  int64_t chunks = 0;            // per stage
  std::vector<StageSpec> parts;  // [chunk * stages + stage]

  /// The chunks of one stage.
  std::vector<StageSpec> of_stage(int64_t stage) const;
};

struct LayoutOptions {
  int64_t layers = 0;
  int64_t stages = 1;
  std::optional<int64_t> chunks = {};            // per stage
  std::optional<int64_t> layers_per_chunk = {};  // the same said the other way round
  std::optional<int64_t> first_stage_layers = {};
  std::optional<int64_t> last_stage_layers = {};
  bool embedding_counts = false;
  bool loss_counts = false;
  std::optional<std::string> text = {};
};

/// Throws UserError(config) with all problems; `where` of a problem is the name of the setting (Megatron-LM's).
PipelineLayout pipeline_layout(const LayoutOptions& options);

}  // namespace teratron
