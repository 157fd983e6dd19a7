// Settings saved in a checkpoint, compared with those of the run that loads it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "teratron/base/error.h"
#include "teratron/settings/arguments.h"

namespace teratron {

/// Names of the settings that define the model.
const std::vector<std::string>& model_fields();

/// The JSON settings `config` in canonical form: model settings without effect are removed and equivalent
/// ones get one spelling, so that equal models have equal settings. `where` names them in errors.
std::string canonical_config(const std::string& config, const std::string& where);

/// Model settings that may differ from the checkpoint's, as no tensor depends on them:
/// max_position_embeddings without learned positions, and the rotary settings when finetuning.
std::vector<std::string> resumable_overrides(const std::string& config, bool finetune);
/// The other model settings, which must be the checkpoint's.
std::vector<std::string> fixed_model_fields(const std::string& config, bool finetune);

/// Whether the user gave the setting under another name: T5's encoder_seq_length is seq_length.
bool is_given_otherwise(std::string_view setting, const Sources& sources);

/// The settings in a checkpoint, as JSON.
struct SavedSettings {
  std::string path;
  std::string config;
};
/// --use-checkpoint-args, or --task.
bool wants_saved_settings(const Arguments& args);
/// The settings of a folder or file of another format; nullopt if it is not one.
using OtherSettings =
    std::function<std::optional<SavedSettings>(const std::string& path, std::optional<int64_t> iteration)>;
/// The settings of what the training starts from: the run in --save (own_run.h), else --load (--ckpt-step),
/// else --pretrained-checkpoint, which `others` may read. Nullopt if there is no checkpoint, or they are not
/// wanted; no_pretrained_checkpoint(). Reads manifests, so one rank of many calls it. Not collective.
std::optional<SavedSettings> read_saved_settings(const Arguments& args, const OtherSettings& others);
/// That --pretrained-checkpoint names none.
UserError no_pretrained_checkpoint(const std::string& path);
/// Takes the settings of model, tokenizer and sequence length that the user did not set, with
/// --use-checkpoint-args the precision too, and adds a notice. Call before validate_arguments().
void use_checkpoint_args(ParsedArguments& parsed, const SavedSettings& settings);

/// A line for each differing setting that changes the training but not the model (seed, dropout, data). Both
/// are JSON.
std::vector<std::string> resume_notices(const std::string& saved, const std::string& current);

}  // namespace teratron
