// What a program built on the library brings along: its train step, its datasets, its model, its own flags. Everything may
// be left out; then it is what `teratron pretrain gpt` does. Given to teratron::main (cli/program.h), or to Training
// (training.h) when the loop is one's own too.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "teratron/models/gpt/data/gpt_builder.h"
#include "teratron/settings/arguments.h"
#include "teratron/tokenizer/tokenizer.h"
#include "teratron/train/train_step.h"

namespace teratron {

struct Registry {
  /// What the functions below may look at.
  struct Run {
    const Arguments& args;
    const Tokenizer& tokenizer;
    const Mesh& mesh;
  };
  /// Flags of the program (own_field), known to the command line, the YAML file, --help and the listing at the start.
  std::vector<Field> fields = {};
  /// Called once on every rank.
  std::function<std::unique_ptr<TrainStep>(const Run&)> train_step = nullptr;
  /// Called for every pipeline stage that a rank holds (model/model.h). The settings of the model arrive as GPT's.
  std::function<std::unique_ptr<Model>(const Run&, const ModelPart&)> model = nullptr;
  /// Called on ranks that read (tensor-parallel rank 0) with what the flags about data say. Samples are as
  /// Megatron-LM's: `sequence_length` inputs with their labels, masks and positions (data/dataset.h).
  std::function<GPTDatasets(const Run&, const GPTDataOptions&)> datasets = nullptr;
};

/// A flag whose value goes to `*value`, which holds the default and must outlive the run. `name` has underscores, as
/// those of the table do.
template <typename T>
Field own_field(std::string_view name, T* value, std::string_view help, const FieldTraits& traits = {}) {
  return {.name = name,
          .type = field_type<T>(),
          .since = "here",
          .help = help,
          .traits = traits,
          .group = "Of this program",
          .place = value};
}

}  // namespace teratron
