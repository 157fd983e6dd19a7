// What a program built on the library adds: model families, a train step, flags, defaults of settings. Passed
// to teratron::main (cli/program.h), or to Trainer (trainer.h) for a custom loop.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "teratron/models/family.h"
#include "teratron/optim/param_group_rules.h"
#include "teratron/train/data/train_context.h"
#include "teratron/train/engine/train_step.h"

namespace teratron {

struct Registry {
  using Context = TrainContext;
  /// Flags of the program (custom_field), for the command line, the YAML file, --help and the listing at the
  /// start.
  std::vector<Field> fields = {};
  /// Defaults of the program for settings of the table, whatever family is trained. The user's flags,
  /// --config-file and --model-preset override them.
  std::vector<ArgsDefault> args_defaults = {};
  /// Families in addition to those of the program, and first when a name is looked up: models with their
  /// settings and datasets (models/family.h). The first is the default of a custom loop.
  std::vector<Family> families = {};
  /// Called once on every rank.
  std::function<std::unique_ptr<TrainStep>(const Context&)> train_step = nullptr;
  /// Factors of weight decay and learning rate by parameter (optim/param_group_rules.h), in place of the
  /// layers'; the user's flags come on top. Null: the layers'.
  ParamGroupFunction param_group = nullptr;
};

/// What a job trains: a family, with the extensions of a program. They must outlive it.
struct JobModel {
  const Family& family;
  const Registry& registry;
};
/// With the registry's first family, else the program's.
inline JobModel default_model(const Registry& registry) {
  return {registry.families.empty() ? families().front() : registry.families.front(), registry};
}

/// A flag whose value is written to `*value`, which holds the default and must outlive the run. `name` has
/// underscores, as in the table.
template <typename T>
Field custom_field(std::string_view name, T* value, std::string_view help, const FieldTraits& traits = {}) {
  Field field = bound_field(name, value, help, traits);
  field.group = "Program";
  return field;
}

}  // namespace teratron
