// What a program built on the library adds: a train step, datasets, a model, flags. Whatever is left out is
// that of `teratron pretrain gpt`. Passed to teratron::main (cli/program.h), or to Trainer (trainer.h) for a
// custom loop.
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
  /// Passed to the functions below.
  struct Context {
    const Arguments& args;
    const Tokenizer& tokenizer;
    const Mesh& mesh;
  };
  /// Flags of the program (custom_field), for the command line, the YAML file, --help and the listing at the
  /// start.
  std::vector<Field> fields = {};
  /// Called once on every rank.
  std::function<std::unique_ptr<TrainStep>(const Context&)> train_step = nullptr;
  /// Called for every pipeline stage of a rank (models/model.h). Model settings are passed as GPT's.
  std::function<std::unique_ptr<Model>(const Context&, const StageContext&)> model = nullptr;
  /// Called on ranks that read data (tensor-parallel rank 0) with the settings of the data flags. Samples are
  /// Megatron-LM's: `sequence_length` inputs with labels, masks and positions (data/dataset.h).
  std::function<GPTDatasets(const Context&, const GPTDataOptions&)> datasets = nullptr;
};

/// A flag whose value is written to `*value`, which holds the default and must outlive the run. `name` has
/// underscores, as in the table.
template <typename T>
Field custom_field(std::string_view name, T* value, std::string_view help, const FieldTraits& traits = {}) {
  return {.name = name,
          .type = field_type<T>(),
          .since = "here",
          .help = help,
          .traits = traits,
          .group = "Program",
          .storage = value};
}

}  // namespace teratron
