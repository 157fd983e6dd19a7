// A model family: what `teratron pretrain NAME` trains. The families of the program are listed in
// families.def; a program on the library brings its own the same way (train/registry.h).
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/data/dataset_builder.h"
#include "teratron/data/indexed/index_cache.h"
#include "teratron/models/finetuning.h"
#include "teratron/models/model_plan.h"
#include "teratron/settings/arguments.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// Datasets for this many samples of train, valid and test; 0: none is needed; nullopt: one epoch.
struct DataRequest {
  const Arguments& args;
  const Tokenizer& tokenizer;
  std::array<std::optional<int64_t>, 3> samples = {};
  std::stop_token stop = {};  // asks the building of an index to end early (comm/long_work.h)
};

/// What the data flags select.
DataSources data_sources(const DataRequest& request);
/// Where the indices of the data are kept: --data-cache-path, else near the data or the run.
IndexCache index_cache(const DataRequest& request);

/// A flag of a family, with the default that its value holds when the family is made.
struct FamilyField : Field {
  FamilyField(const Field& field);  // NOLINT: a family lists fields
  std::string initial;              // as a JSON object; "{}" of a row of the table
};

struct Family {
  std::string_view name;                            // "gpt": of the command line, and in checkpoints
  std::string_view summary;                         // one line for --help
  std::string_view example = "--config-file FILE";  // flags that train it: for --help
  /// Flags of a program's family (custom_field); those of a built-in family are rows of its flags.def. They
  /// define the model: a resumed training must have those of its checkpoint. Others are Registry::fields.
  std::vector<FamilyField> fields = {};
  /// Its settings. `names`: beside "training" the families, itself included, whose rows of arguments.def are
  /// its flags. If it names none, those of all families are besides, as nobody knows which it reads.
  Program settings = {};
  /// Defaults of a program's family for settings of the table; the program's (Registry) come before them.
  std::vector<ArgsDefault> args_defaults = {};
  /// Adds a problem for each contradiction that settings/checks does not know; may be null.
  std::function<void(const Arguments&, std::vector<Problem>&)> check = nullptr;
  /// `vocabulary`: the tokenizer's size.
  std::function<ModelPlan(const Arguments&, int64_t vocabulary)> plan;
  /// Called on the ranks that read data. The datasets fill the columns of ModelPlan::batch.
  std::function<Datasets(const DataRequest&)> datasets = nullptr;
  /// From which checkpoints besides its own it is finetuned.
  Finetuning finetunes = {};
  bool generates = true;              // writes text, token by token
  bool learns_conversations = false;  // with --sft, as `teratron finetune NAME` trains it
  /// A head on its model, trained on labelled texts by `teratron finetune NAME --task`; null: none.
  Family (*classifier)() = nullptr;
  /// The family trained on texts as JSON lines, as `teratron finetune NAME` does; null: only on its own data.
  Family (*on_texts)() = nullptr;
};

/// The program that trains the family, for parse_arguments().
Program training_of(const Family& family);

/// For the check of a family whose layers have no experts.
Problem no_experts();

/// The families of the program, by name.
std::span<const Family> families();
/// UserError(config) that lists the families if there is none of this name. `more` are a program's.
const Family& find_family(std::string_view name, std::span<const Family> more = {});
/// The family of a checkpoint's model: also a classifier's. UserError(config) if there is none of this name.
const Family& find_saved_family(std::string_view name, std::span<const Family> more = {});

/// The flags that a program's family brings (Family::fields) and their values, as a JSON object.
std::string family_settings(const Family& family);
/// Gives these flags the values in the settings of a checkpoint, `config`, or their defaults where it has
/// none, except those of `given`. Returns the names of those that get another value than their default.
/// `where` names the checkpoint in errors. Ranks that are threads share the values, and all may call it with
/// one checkpoint.
std::vector<std::string> read_family_settings(const Family& family, const std::string& config,
                                              const std::string& where, const Sources& given = {});

}  // namespace teratron
