// The settings of a training: flags, file and environment, with those of a checkpoint and of adapters.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "teratron/settings/arguments.h"
#include "teratron/settings/checkpoint_args.h"
#include "teratron/train/registry.h"

namespace teratron {

/// The settings of flags, file and environment; not validated, with problems deferred
/// (ParsedArguments::problems). With --help only `help` is set.
ParsedArguments flag_arguments(std::span<const std::string> args, const JobModel& model);
/// As flag_arguments(); with --use-checkpoint-args also the settings of the checkpoint, which is read here.
ParsedArguments given_arguments(std::span<const std::string> args, const JobModel& model);
/// read_saved_settings() of a checkpoint of ours or of Megatron-LM.
std::optional<SavedSettings> settings_to_start_with(const ParsedArguments& parsed);
/// Finishes the settings of flag_arguments() for `world_size` ranks, with those of the checkpoint.
/// UserError(config) lists every problem.
void finish_arguments(ParsedArguments& parsed, const std::optional<SavedSettings>& saved, int64_t world_size,
                      const JobModel& model, const ValidateOptions& options = {});
/// All of that by one process. With --help only `help` is set.
ParsedArguments pretrain_arguments(std::span<const std::string> args, int64_t world_size,
                                   const JobModel& model, const ValidateOptions& options = {});
/// Text of --help: the flags of the family and of the program. `command`: "pretrain gpt".
std::string training_help(std::string_view command, const JobModel& model);
/// The part of it that the arguments ask for (base/config/help_view.h); of --help alone the main flags.
std::string training_help_view(std::string_view command, const JobModel& model,
                               std::span<const std::string> args);

}  // namespace teratron
