#include "teratron/generate/loaded_model.h"

#include <nlohmann/json.hpp>

#include "teratron/models/gpt/gpt_config.h"
#include "teratron/train/model_checkpoint.h"

namespace teratron {

namespace {

// Without padding.
int64_t vocabulary_of(const CheckpointInfo& info) {
  const auto found = info.tensors.find("embedding.word_embeddings.weight");
  if (found == info.tensors.end() || found->second.shape.size() != 2) {
    throw checkpoint_error({.what = "the checkpoint has no embedding.word_embeddings.weight",
                            .where = info.path.string(),
                            .fix = "Use the checkpoint of a GPT model"});
  }
  return found->second.shape[0];
}

void check_divisible(const GPTConfig& config, int64_t ranks) {
  if (config.query_groups % ranks == 0 && config.heads % ranks == 0 && config.ffn_hidden % ranks == 0) return;
  throw config_error(
      {.what = fmt::format("{} heads in {} query groups and an MLP of width {} are not divisible by {} "
                           "tensor-parallel ranks",
                           config.heads, config.query_groups, config.ffn_hidden, ranks),
       .where = "--tensor-model-parallel-size",
       .fix = "Use a number of ranks that divides all of them"});
}

// The settings of the checkpoint, overridden by those that the user gave.
Arguments merge_settings(const ParsedArguments& given, const CheckpointInfo& checkpoint) {
  nlohmann::json merged = nlohmann::json::parse(checkpoint.config);
  const nlohmann::json current = nlohmann::json::parse(to_json(given.args));
  for (const auto& [field, source] : given.sources) merged[field] = current.at(field);
  // The run that saved it had another layout and other paths.
  for (const char* field : {"tensor_model_parallel_size", "pipeline_model_parallel_size", "sequence_parallel",
                            "padded_vocab_size", "load", "save", "run_dir", "tensorboard_dir", "seed"}) {
    merged[field] = current.at(field);
  }
  std::vector<std::string> unknown;
  return arguments_from_json(merged.dump(), checkpoint.path.string(), &unknown);
}

}  // namespace

LoadedModel load_for_inference(const ParsedArguments& given, const InferenceOptions& options,
                               const Mesh& mesh) {
  if (!given.args.load) {
    throw config_error({.what = "no checkpoint is given", .where = "--load", .fix = "Set --load DIR"});
  }
  Communicator& world = *mesh.world().communicator;
  const auto path = find_checkpoint(*given.args.load, given.args.ckpt_step, world);
  if (!path) {
    throw checkpoint_error({.what = "no checkpoint found",
                            .where = *given.args.load,
                            .fix = "Use the directory that --save wrote"});
  }
  LoadedModel loaded{.checkpoint = open_checkpoint(*path)};
  loaded.args = merge_settings(given, loaded.checkpoint);
  const Group& tp = mesh.group(Axis::tp);
  loaded.args.tensor_model_parallel_size = tp.size;
  const GPTConfig config = gpt_config(loaded.args, vocabulary_of(loaded.checkpoint));
  check_divisible(config, tp.size);
  loaded.parameters = std::make_unique<ParameterSet>(
      ParameterSet::Options{.dtype = options.dtype, .device = options.device, .seed = 0});
  loaded.model = std::make_unique<GPT>(*loaded.parameters, config, StageSpec{.layers = config.layers},
                                       TensorParallel{tp});
  load_weights(*loaded.parameters, *path, world);
  return loaded;
}

}  // namespace teratron
