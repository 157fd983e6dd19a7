// Runs the steps of generation on this rank's stage of the model, with the states of its layers. All ranks
// run the same steps.
//
// Stages get a step in as many micro-batches as there are stages, each of some of its sequences; a rank with
// several chunks (virtual stages) passes all of them through one after the other. On GPUs,
// steps of one token per sequence are CUDA graphs (decode_graphs.h) unless there are several stages.
#pragma once

#include <memory>

#include "teratron/generate/graphs/decode_graphs.h"
#include "teratron/generate/image_rows.h"
#include "teratron/generate/language_model.h"
#include "teratron/generate/step.h"

namespace teratron {

/// What the layers keep of the sequences, on this rank.
StateNeeds state_needs(const LanguageModel& model);

class StageRunner {
 public:
  struct Options {
    StateCapacity capacity;
    int64_t max_rows = 1;                             // of a step that decodes
    bool graphs = true;                               // where they are possible, for rows without adapters
    std::vector<const LanguageModel*> adapters = {};  // the same model with other weights
  };
  /// Collective over the pipeline.
  StageRunner(const LanguageModel& model, const Options& options);
  /// Returns the same on all ranks. Collective.
  StepOutput run(const StepInput& step);
  void copy_states(const StateCopies& copies);

 private:
  /// The outputs of the head for each part; none on ranks without it.
  std::vector<Activations> run_chunks(const std::vector<StepInput>& parts);
  void describe_rows(const StepInput& part);
  void describe_slots(const StepInput& part);
  bool set_tables(const std::vector<StepRow>& rows, int64_t decoded, int64_t padded);
  bool set_slots(const std::vector<StepRow>& rows, int64_t padded);
  bool decodes_only(const StepInput& step) const;
  StepOutput decode(const StepInput& step);
  void connect_stages() const;
  MicroBatch batch_of(const StepInput& part) const;
  /// Whose weights the rows of a part use.
  const LanguageModel& model_of(const StepInput& part) const;
  at::Tensor state_sums(const StepInput& part, const Activations& output) const;
  int64_t hidden_size(const StepInput& step) const;
  at::Tensor next_tokens(const StepInput& part, const Activations& output) const;
  at::Tensor target_logprobs(const StepInput& part, const Activations& output) const;
  at::Tensor agreed(const at::Tensor& values) const;
  int64_t tokens_of(const StepInput& step, const StepChoice& choice) const;
  StepOutput unpack(const StepInput& step, const at::Tensor& values) const;

  const LanguageModel& model_;
  Options options_;
  std::shared_ptr<GenerationBatch> batch_ = std::make_shared<GenerationBatch>();
  std::vector<std::unique_ptr<LayerStates>> states_;  // of each chunk
  bool keeps_slots_ = false;
  bool has_tables_ = false;  // layers find their pages by tables
  PageTable table_;
  RowNumbers slots_;
  SourceTable sources_;
  ImageRows images_;
  std::unique_ptr<DecodeGraphs> graphs_;  // null: eager
};

}  // namespace teratron
