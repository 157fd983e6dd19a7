// A pipeline stage of a language model for inference.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "teratron/models/model_plan.h"

namespace teratron {

/// The pipeline of a model; by default of one stage.
struct InferencePipeline {
  std::vector<StageSpec> chunks = {};  // of this rank, in the model's order; several are virtual stages
  Group group = {};
  PipelineLinks links = {};
};

/// The ranks of a model; by default one. All those of a stage have the same tokens.
struct InferenceRanks {
  Group tensor_parallel = {};
  InferencePipeline pipeline = {};
  Mesh mesh = {};  // of the experts
  /// Ranks with copies of this one's dense layers, which share experts with it and must take the same steps:
  /// all take the tokens that the first one chose.
  Group copies = {};
};

/// The chunks of a pipeline rank, on the ranks of one tensor-parallel group.
struct LanguageModel {
  std::vector<std::unique_ptr<Model>> chunks;
  int64_t vocabulary = 0;
  int64_t max_positions = 0;
  Inference inference = {};
  Group tensor_parallel = {};
  Group copies = {};            // see InferenceRanks
  Group context_parallel = {};  // whose ranks share the tokens of logits_of() and outputs_of()
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  std::vector<Channel> channels = {};
  TextOptions text = {};                     // see ModelPlan
  std::optional<SourceOptions> source = {};  // see ModelPlan
  InferencePipeline pipeline = {};

  /// The head is that of the last chunk.
  bool has_head() const { return chunks.back()->stage().head; }
  /// The model, if it has one stage.
  Model& whole() const { return *chunks.front(); }
};
/// Its parameters are created in `parameters`. Without chunks in the pipeline: one stage with all layers.
LanguageModel language_model(const ModelPlan& plan, ParameterSet& parameters,
                             const InferenceRanks& ranks = {});

/// Tokens at these positions of their texts and, if a source is encoded, its tokens.
MicroBatch token_batch(const LanguageModel& model, const at::Tensor& tokens_T, const at::Tensor& positions_T,
                       const at::Tensor& source_S = {});
/// Logits [S, vocabulary], without padding, of hidden states [S, 1, H] of the last stage, on every
/// tensor-parallel rank.
at::Tensor gathered_logits(const LanguageModel& model, const Activations& output);

/// What a chunk gets from the one before it, on the stage before; none at the start of the model.
Activations receive_input(const LanguageModel& model, const Model& chunk, const MicroBatch& batch);
/// Sends what a chunk that is not the last gives to the next.
Work send_output(const LanguageModel& model, const Model& chunk, const MicroBatch& batch,
                 const Activations& output);
/// The output of the last stage for a batch outside of a generation; none on the ranks of others. Collective
/// over the pipeline, whose links are connected (pipeline/executor.h).
Activations forward_stages(const LanguageModel& model, const MicroBatch& batch);

// As forward_stages(): on the ranks of the last stage, else undefined or none.

/// Logits [S, 1, vocabulary], without padding, of the token ids of one sequence.
at::Tensor logits_of(const LanguageModel& model, std::span<const int64_t> ids);

/// The outputs of a micro-batch in fp32 on the CPU: [B, ...], logits [B, S, vocabulary] without padding.
std::vector<InferenceOutput> outputs_of(const LanguageModel& model, const MicroBatch& batch);
/// Model::text_embeddings() likewise.
at::Tensor text_embeddings_of(const LanguageModel& model, const MicroBatch& batch);

}  // namespace teratron
