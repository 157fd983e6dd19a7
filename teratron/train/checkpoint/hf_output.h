// The folders of --hf-out (Hugging Face, model and tokenizer) and of --lora-out (PEFT, the adapters).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "teratron/train/checkpoint/checkpoint_saver.h"

namespace teratron {

/// Weights that began as those of a Hugging Face folder (--hf) are written in its dtypes, others in those of
/// a checkpoint.
/// Collective over the mesh.
class HfOutput {
 public:
  /// Both must outlive it.
  HfOutput(const CheckpointedRun& run, CheckpointSaver& saver) : run_(run), saver_(saver) {}

  /// Whether write() will succeed, before the training: errors are check_export()'s (hf/convert.h) and
  /// check_peft()'s (hf/peft.h). A folder that exists is left out if the training is `finished`: nothing is
  /// written to it.
  void check(bool finished);
  /// Writes the weights as they are to the folders that are missing or empty; from the checkpoint if this
  /// iteration is saved, else through a copy beside the folder. With adapters --hf-out gets the weights they
  /// are merged into. Before the last of `train_iters` steps only what no checkpoint keeps is written.
  void write(int64_t train_iters);

 private:
  void check_model();
  void check_adapters();
  void write_model();
  void write_adapters();
  /// use(checkpoint) on rank 0, with the weights as they are: the saved one, or one that is written beside
  /// `output` and removed again.
  void with_checkpoint(const std::filesystem::path& output,
                       const std::function<void(const CheckpointSource&)>& use);

  const CheckpointedRun& run_;
  CheckpointSaver& saver_;
  std::map<std::string, Dtype> dtypes_;  // on rank 0, of the weights in --hf by their names
};

}  // namespace teratron
